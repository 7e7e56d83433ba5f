package kvevents

import (
	"bytes"
	_ "embed"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/internal/wire/zmq"
)

// A Vector is a message of KV events that a decoder is tested with.
type Vector struct {
	Name string
	// What is a sentence about it, and MadeBy the release that sent it, "vllm-vcr" for a message of [Vectors].
	What, MadeBy string
	Line         string
	// Replay marks an answer of the replay endpoint.
	Replay bool
	Frames zmq.Message
}

//go:embed vectors.json
var vectorsText []byte

// madeUp is an entry of vectors.json. Hashes are texts: decimal digits, or bytes in hexadecimal.
type madeUp struct {
	Name, What    string
	Topic         *string
	Sequence      uint64
	TS            float64
	Rank          int
	Bytes, Replay bool
	Events        []map[string]any
}

// Vectors are the messages of vectors.json as engines of the line encode them. Fields that the line does not have are left out.
func Vectors(p *protocol.Profile) (all []Vector, err error) {
	var made []madeUp
	d := json.NewDecoder(bytes.NewReader(vectorsText))
	d.UseNumber()
	if err := d.Decode(&made); err != nil {
		return nil, err
	}
	for _, m := range made {
		topic, name := "kv@10.0.0.1:8000@tiny", "KV events"
		if m.Topic != nil {
			topic = *m.Topic
		}
		if m.Replay {
			name += " replay"
		}
		var b batch
		if m.Events == nil {
			name += " end"
		} else if b, err = m.encode(p); err != nil {
			return nil, fmt.Errorf("vector %s: %w", m.Name, err)
		}
		parts, err := partsOf(p, name)
		if err != nil {
			return nil, err
		}
		all = append(all, Vector{m.Name, m.What, "vllm-vcr", p.Line, m.Replay, message(parts, []byte(topic), b)})
	}
	return all, nil
}

// encode writes the batch as Python's msgspec does: fields in their order, and those with a default only if they have another value.
func (m *madeUp) encode(p *protocol.Profile) (batch, error) {
	b := binary.BigEndian.AppendUint64(nil, m.Sequence)
	b = pack.AppendFloat64(pack.AppendArrayHeader(b, 3), 1.5+m.TS)
	b = pack.AppendArrayHeader(b, len(m.Events))
	for _, e := range m.Events {
		name, _ := e["type"].(string)
		s, known := p.Structs[name]
		if !known || s.Encoding != "map" {
			return nil, fmt.Errorf("wire profile %s has no struct %s that is a map", p.Line, name)
		}
		n, fields := 1, []byte(nil)
		for _, f := range s.Fields {
			value := e[f.Name]
			if value == nil && !f.Required {
				continue
			}
			n++
			fields = pack.AppendString(fields, f.Name)
			var err error
			if fields, err = m.value(fields, value, strings.Contains(f.Name, "block_hash")); err != nil {
				return nil, fmt.Errorf("%s.%s: %w", name, f.Name, err)
			}
		}
		b = appendMapHeader(b, n, 1+len(s.Fields))
		b = append(pack.AppendString(pack.AppendString(b, tagKey), s.Tag), fields...)
	}
	return pack.AppendInt(b, int64(m.Rank)), nil
}

func (m *madeUp) value(b []byte, value any, hash bool) ([]byte, error) {
	switch v := value.(type) {
	case nil:
		return pack.AppendNil(b), nil
	case json.Number:
		n, err := v.Int64()
		return pack.AppendInt(b, n), err
	case string:
		switch {
		case hash && m.Bytes:
			digest, err := hex.DecodeString(v)
			return pack.AppendBin(b, digest), err
		case hash:
			n, err := strconv.ParseUint(v, 10, 64)
			return pack.AppendUint(b, n), err
		}
		return pack.AppendString(b, v), nil
	case []any:
		b = pack.AppendArrayHeader(b, len(v))
		for _, one := range v {
			var err error
			if b, err = m.value(b, one, hash); err != nil {
				return nil, err
			}
		}
		return b, nil
	}
	return nil, fmt.Errorf("a value of type %T", value)
}

// Shown are the kinds of events in a message that an engine has sent: "stored-parent-adapter", "removed", "cleared".
func Shown(payload []byte) (kinds []string) {
	for e := range protocol.ViewOf(payload).At(1).Parts() {
		kind := map[string]string{"BlockStored": "stored", "BlockRemoved": "removed", "AllBlocksCleared": "cleared"}[e.Field("type").Text()]
		if e.Field("block_hashes").Len() > 1 {
			kind += "-blocks"
		}
		if parent := e.Field("parent_block_hash"); !parent.IsAbsent() && parent.Kind() != pack.Nil {
			kind += "-parent"
		}
		if e.Field("lora_name").Text() != "" {
			kind += "-adapter"
		} else if e.Field("extra_keys").At(0).Len() > 0 {
			kind += "-key"
		}
		if !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

// Payload is the last frame.
func (v *Vector) Payload() []byte { return v.Frames[len(v.Frames)-1] }

// Meaning is what the message means, in JSON: an event a line.
func (v *Vector) Meaning() []byte {
	text := func(value any) []byte {
		t, _ := json.Marshal(value) // of texts, numbers, lists and maps
		return t
	}
	var frames []string
	for _, f := range v.Frames[:len(v.Frames)-1] {
		frames = append(frames, hex.EncodeToString(f))
	}
	socket, number := "events", int64(binary.BigEndian.Uint64(v.Frames[len(v.Frames)-2]))
	if v.Replay {
		socket = "replay"
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, "{\n\"line\": %s,\n\"made_by\": %s,\n\"what\": %s,\n\"socket\": %s,\n\"frames_before_payload\": %s,\n\"sequence\": %d",
		text(v.Line), text(v.MadeBy), text(v.What), text(socket), text(frames), number)
	if len(v.Payload()) > 0 {
		b := protocol.ViewOf(v.Payload())
		fmt.Fprintf(&out, ",\n\"ts\": %s,\n\"data_parallel_rank\": %s,\n\"events\": [", text(meaning(b.At(0), false)), text(meaning(b.At(2), false)))
		separator := "\n"
		for e := range b.At(1).Parts() {
			fmt.Fprintf(&out, "%s%s", separator, text(meaning(e, false)))
			separator = ",\n"
		}
		out.WriteString("\n]")
	}
	out.WriteString("\n}\n")
	return out.Bytes()
}

// meaning is a value as JSON has it. Bytes are in hexadecimal, and hashes are texts, since programs read large numbers as floats.
func meaning(v protocol.Value, hash bool) any {
	switch v.Kind() {
	case pack.Map:
		fields := map[string]any{}
		for field := range v.Parts() {
			fields[field.Name()] = meaning(field, strings.Contains(field.Name(), "block_hash"))
		}
		return fields
	case pack.Array:
		list := []any{}
		for one := range v.Parts() {
			list = append(list, meaning(one, hash))
		}
		return list
	case pack.String:
		return v.Text()
	case pack.Bin:
		raw := pack.NewCursor(v.Bytes())
		data, _ := raw.Bin() // it is one
		return hex.EncodeToString(data)
	case pack.Nil:
		return nil
	}
	if hash {
		return pack.Format(v.Bytes())
	}
	return json.RawMessage(pack.Format(v.Bytes()))
}
