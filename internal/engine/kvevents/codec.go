package kvevents

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/vllm-vcr/conformance/internal/engine/kvcache"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/internal/wire/zmq"
)

// What is the same for every block of an engine of ours: it has one group of full attention, and the
// cache is where the model is.
const (
	mediumGPU = "GPU"
	groupKind = "full_attention"
)

// A codec writes batches as a line's engine does, one after the other.
type codec struct {
	stored, removed, cleared layout
	rank                     int
	digests                  bool  // hashes as bytes, else as numbers
	event                    event // the one being written
}

// A layout is the order in which an event's fields are written.
type layout struct {
	head    []byte // header and tag
	unnamed []byte // the same if there is no session to say
	fields  []field
}

type field struct {
	key     []byte // nothing in an array
	value   func(c *codec, b []byte, e *event) []byte
	session bool // in a map it is written of a session only
}

// event is a kvcache.Event whose kind the layout knows.
type event struct {
	kvcache.BlockStored
	removed kvcache.BlockRemoved
}

const sessionID = "session_id"

// values writes the fields that an engine gives a value. The others of a
// line are absent from a map and nil in an array.
var values = map[string]map[string]func(c *codec, b []byte, e *event) []byte{
	"BlockStored": {
		"block_hashes":       (*codec).appendHashes,
		"parent_block_hash":  (*codec).appendParent,
		"token_ids":          func(_ *codec, b []byte, e *event) []byte { return pack.AppendUint32s(b, e.Tokens) },
		"block_size":         func(_ *codec, b []byte, e *event) []byte { return pack.AppendInt(b, int64(e.BlockSize)) },
		"lora_id":            appendLoRAID,
		"medium":             appendMedium,
		"lora_name":          func(_ *codec, b []byte, e *event) []byte { return appendText(b, e.LoRA.Name) },
		"extra_keys":         appendExtraKeys,
		"group_idx":          appendGroup,
		"kv_cache_spec_kind": func(_ *codec, b []byte, e *event) []byte { return pack.AppendString(b, cmp.Or(e.Kind, groupKind)) },
		sessionID:            func(_ *codec, b []byte, e *event) []byte { return appendText(b, e.Session) },
	},
	"BlockRemoved": {
		"block_hashes": func(c *codec, b []byte, e *event) []byte {
			return c.appendHash(pack.AppendArrayHeader(b, 1), e.removed.Hash)
		},
		"medium":    appendMedium,
		"group_idx": appendGroup,
	},
}

func newCodec(p *protocol.Profile, o Options) (*codec, error) {
	c := &codec{rank: o.Rank, digests: o.Digests}
	batch := p.Structs["KVEventBatch"]
	names := []string{"ts", "events", "data_parallel_rank"}
	if batch.Encoding != "array" || len(batch.Fields) != len(names) {
		return nil, fmt.Errorf("wire profile %s: KVEventBatch is a %s of %d fields, this build writes an array of %v",
			p.Line, batch.Encoding, len(batch.Fields), names)
	}
	for i, name := range names {
		if batch.Fields[i].Name != name {
			return nil, fmt.Errorf("wire profile %s: field %d of KVEventBatch is %s, this build writes %s", p.Line, i, batch.Fields[i].Name, name)
		}
	}
	for name, l := range map[string]*layout{"BlockStored": &c.stored, "BlockRemoved": &c.removed, "AllBlocksCleared": &c.cleared} {
		s, ok := p.Structs[name]
		if !ok {
			return nil, fmt.Errorf("wire profile %s has no struct %s", p.Line, name)
		}
		if o.Arrays {
			s.Encoding = "array"
		}
		var err error
		if *l, err = newLayout(s, values[name]); err != nil {
			return nil, fmt.Errorf("wire profile %s: %s.%w", p.Line, name, err)
		}
	}
	return c, nil
}

func newLayout(s protocol.Struct, values map[string]func(*codec, []byte, *event) []byte) (layout, error) {
	var l layout
	isMap := s.Encoding == "map"
	for _, f := range s.Fields {
		value, known := values[f.Name]
		switch {
		case !known && f.Required:
			return l, fmt.Errorf("%s is required and this build has no value for it: teach internal/engine/kvevents the field", f.Name)
		case !known && isMap:
			continue
		case !known:
			value = func(_ *codec, b []byte, _ *event) []byte { return pack.AppendNil(b) }
		}
		var key []byte
		if isMap {
			key = pack.AppendString(nil, f.Name)
		}
		l.fields = append(l.fields, field{key: key, value: value, session: isMap && f.Name == sessionID})
	}
	said := 1 + len(l.fields)
	if !isMap {
		l.head = pack.AppendString(pack.AppendArrayHeader(nil, said), s.Tag)
		l.unnamed = l.head
		return l, nil
	}
	begin := func(n int) []byte {
		return pack.AppendString(pack.AppendString(appendMapHeader(nil, n, 1+len(s.Fields)), tagKey), s.Tag)
	}
	l.head, l.unnamed = begin(said), begin(said)
	if slices.ContainsFunc(l.fields, func(f field) bool { return f.session }) {
		l.unnamed = begin(said - 1)
	}
	return l, nil
}

// tagKey is the key of a map that names its struct.
const tagKey = "type"

// appendMapHeader writes that n keys follow, of those the struct has. Python's msgspec
// leaves room for all of them before it knows how many are absent.
func appendMapHeader(b []byte, n, of int) []byte {
	const map16Tag, maxShort = 0xde, 15
	if of <= maxShort {
		return pack.AppendMapHeader(b, n)
	}
	return binary.BigEndian.AppendUint16(append(b, map16Tag), uint16(n))
}

// appendBatch writes the events of one step.
func (c *codec) appendBatch(b []byte, ts float64, events []kvcache.Event) []byte {
	b = pack.AppendFloat64(pack.AppendArrayHeader(b, 3), ts)
	b = pack.AppendArrayHeader(b, len(events))
	e := &c.event
	for _, happened := range events {
		switch happened := happened.(type) {
		case kvcache.BlockStored:
			e.BlockStored = happened
			b = c.append(b, &c.stored, e)
		case kvcache.BlockRemoved:
			e.removed, e.Place = happened, happened.Place
			b = c.append(b, &c.removed, e)
		case kvcache.AllBlocksCleared:
			b = c.append(b, &c.cleared, e)
		}
	}
	*e = event{} // whose memory it is others may want back
	return pack.AppendInt(b, int64(c.rank))
}

func (c *codec) append(b []byte, l *layout, e *event) []byte {
	named := e.Session != ""
	if named {
		b = append(b, l.head...)
	} else {
		b = append(b, l.unnamed...)
	}
	for i := range l.fields {
		if f := &l.fields[i]; named || !f.session {
			b = f.value(c, append(b, f.key...), e)
		}
	}
	return b
}

func (c *codec) appendHashes(b []byte, e *event) []byte {
	b = pack.AppendArrayHeader(b, len(e.Hashes))
	for _, h := range e.Hashes {
		b = c.appendHash(b, h)
	}
	return b
}

func (c *codec) appendParent(b []byte, e *event) []byte {
	if e.Parent == nil {
		return pack.AppendNil(b)
	}
	return c.appendHash(b, e.Parent)
}

// uint64Tag is MessagePack's for an unsigned number of 8 bytes.
const uint64Tag = 0xcf

func (c *codec) appendHash(b, hash []byte) []byte {
	if c.digests {
		return pack.AppendBin(b, hash)
	}
	return binary.BigEndian.AppendUint64(append(b, uint64Tag), kvcache.IntHash(hash))
}

func appendMedium(_ *codec, b []byte, e *event) []byte {
	return pack.AppendString(b, cmp.Or(e.Medium, mediumGPU))
}

func appendGroup(_ *codec, b []byte, e *event) []byte { return pack.AppendInt(b, int64(e.Group)) }

func appendLoRAID(_ *codec, b []byte, e *event) []byte {
	if e.LoRA.Name == "" {
		return pack.AppendNil(b)
	}
	return pack.AppendInt(b, e.LoRA.ID)
}

func appendText(b []byte, text string) []byte {
	if text == "" {
		return pack.AppendNil(b)
	}
	return pack.AppendString(b, text)
}

// appendExtraKeys writes, for each block, nil or its keys without their kinds: a
// feature's are its id and offset, the others are texts.
func appendExtraKeys(_ *codec, b []byte, e *event) []byte {
	b = pack.AppendArrayHeader(b, len(e.Keys))
	for _, keys := range e.Keys {
		if len(keys) == 0 {
			b = pack.AppendNil(b)
			continue
		}
		b = pack.AppendArrayHeader(b, len(keys))
		for _, k := range keys {
			if k.Kind == kvcache.KeyFeature {
				b = pack.AppendInt(pack.AppendString(pack.AppendArrayHeader(b, 2), k.Text), int64(k.Offset))
			} else {
				b = pack.AppendString(b, k.Text)
			}
		}
	}
	return b
}

// A part is what one frame of a message holds.
type part uint8

const (
	partEmpty part = iota
	partTopic
	partSeq
	partPayload
	partEnd // is where the number of a batch would, behind the last one
)

// partNames are the names that the profiles have for the frames. The identity of the
// asker is not a frame of its own here, but the connection.
var partNames = map[string]part{
	"empty": partEmpty, "topic": partTopic, "seq": partSeq, "payload": partPayload, "buf": partPayload, "END_SEQ": partEnd,
}

const identityName = "client_id"

// endSeq is -1 in 8 bytes.
var endSeq = bytes.Repeat([]byte{0xff}, seqSize)

// partsOf returns the frames of a message that the line's engine writes by hand.
func partsOf(p *protocol.Profile, name string) ([]part, error) {
	m, ok := p.Messages[name]
	if !ok || m.Encoding != "frames" {
		return nil, fmt.Errorf("wire profile %s does not say what the frames of %q are", p.Line, name)
	}
	var parts []part
	for i, k := range m.Keys {
		if i == 0 && k.Name == identityName {
			continue
		}
		kind, known := partNames[k.Name]
		if !known {
			return nil, fmt.Errorf("wire profile %s: frame %d of %q is %s, which this build has no value for: teach internal/engine/kvevents",
				p.Line, i, name, k.Name)
		}
		parts = append(parts, kind)
	}
	return parts, nil
}

// seqSize is how many bytes the number of a batch has, big-endian.
const seqSize = 8

// A batch is a number and the events that were published with it.
type batch []byte

// message arranges the parts of a batch, which it shares. The end has none.
func message(parts []part, topic []byte, b batch) zmq.Message {
	m := make(zmq.Message, len(parts))
	for i, kind := range parts {
		switch kind {
		case partTopic:
			m[i] = topic
		case partSeq:
			m[i] = b[:seqSize]
		case partPayload:
			m[i] = b[seqSize:]
		case partEnd:
			m[i] = endSeq
		default:
			m[i] = []byte{}
		}
	}
	return m
}
