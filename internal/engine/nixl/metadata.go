package nixl

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// Metadata is what one worker of a prefill engine says of its KV cache: NixlAgentMetadata with the fields of all lines. A region is
// the memory of one layer; block i of it begins at its address plus i times its stride.
type Metadata struct {
	EngineID      string   `msgpack:"engine_id"`
	AgentMetadata []byte   `msgpack:"agent_metadata"` // of NIXL, opaque
	BaseAddresses []uint64 `msgpack:"kv_caches_base_addr"`
	DeviceID      int      `msgpack:"device_id"`
	Blocks        int      `msgpack:"num_blocks"`
	BlockLens     []int    `msgpack:"block_lens"`    // bytes of a block, by region
	BlockStrides  []int    `msgpack:"block_strides"` // bytes, by region; lines before 0.29 have none, and blocks follow each other
	Layout        string   `msgpack:"kv_cache_layout"`
	BlockSize     int      `msgpack:"block_size"` // tokens
	SSMSizes      [2]int   `msgpack:"ssm_sizes"`
	AttnBackend   string   `msgpack:"attn_backend_name"`
	// PhysicalBlocks is how many blocks of the kernel a block of the scheduler has.
	PhysicalBlocks int                  `msgpack:"physical_blocks_per_logical_kv_block"`
	RegionBlocks   []int                `msgpack:"region_num_blocks"`
	RegionGroups   []int                `msgpack:"region_group_ids"`
	RegionNames    []string             `msgpack:"region_names"`
	RegionMemory   []string             `msgpack:"region_mem_types"`
	DCPSize        int                  `msgpack:"dcp_size"`
	PCPSize        int                  `msgpack:"pcp_size"`
	PLEBlockLen    *int                 `msgpack:"ple_block_len"`
	RegionMembers  [][]string           `msgpack:"region_members"`
	PackedLayouts  map[string][2]uint64 `msgpack:"packed_member_layouts"`
}

// Stride is the distance of two blocks of a region, in bytes.
func (m *Metadata) Stride(region int) int {
	if region < len(m.BlockStrides) {
		return m.BlockStrides[region]
	}
	return m.BlockLens[region]
}

// Check returns why the metadata describes no memory that can be read.
func (m *Metadata) Check() error {
	regions := len(m.BaseAddresses)
	switch {
	case regions == 0 || m.Blocks < 1 || m.BlockSize < 1:
		return fmt.Errorf("it describes no memory: %d regions, %d blocks of %d tokens", regions, m.Blocks, m.BlockSize)
	case len(m.BlockLens) != regions || m.BlockStrides != nil && len(m.BlockStrides) != regions:
		return fmt.Errorf("it has %d addresses, %d lengths and %d strides of regions", regions, len(m.BlockLens), len(m.BlockStrides))
	}
	for i, n := range m.BlockLens {
		if n < 1 || m.Stride(i) < n || uint64(m.Stride(i)) > (1<<62)/uint64(m.Blocks) {
			return fmt.Errorf("region %d: %d blocks of %d bytes, one every %d bytes", i, m.Blocks, n, m.Stride(i))
		}
	}
	return nil
}

// A Payload is the answer to a request, before its metadata is read.
type Payload struct {
	Hash     string `msgpack:"compatibility_hash"`
	Metadata []byte `msgpack:"agent_metadata_bytes"`
}

// Encode writes metadata and the hash as the first frame of the line's answer.
func (l *Line) Encode(m *Metadata, hash string) []byte {
	return l.encode("NixlHandshakePayload", &Payload{Hash: hash, Metadata: l.encode("NixlAgentMetadata", m)})
}

// encode writes the fields of a struct that the line has, in its order.
func (l *Line) encode(name string, of any) []byte {
	fields := l.Structs[name].Fields
	value, keys := reflect.ValueOf(of).Elem(), tagsOf(of)
	var b bytes.Buffer
	e := msgpack.NewEncoder(&b)
	e.UseCompactInts(true)
	e.SetSortMapKeys(true)
	b.Write(pack.AppendMapHeader(nil, len(fields)))
	for _, f := range fields {
		b.Write(pack.AppendString(nil, f.Name))
		i, known := keys[f.Name]
		if !known || !f.Required && value.Field(i).IsZero() { // a field of a line that this program does not know has its default
			b.Write(defaultOf(f))
			continue
		}
		_ = e.Encode(value.Field(i).Interface()) // into memory, of types that it can write
	}
	return b.Bytes()
}

func tagsOf(of any) map[string]int {
	keys, t := map[string]int{}, reflect.TypeOf(of).Elem()
	for i := range t.NumField() {
		keys[t.Field(i).Tag.Get("msgpack")] = i
	}
	return keys
}

// defaultOf is the default of a field: a number, an empty list or map, or nil.
func defaultOf(f protocol.Field) []byte {
	switch text := string(f.Default); text {
	case "[]":
		return pack.AppendArrayHeader(nil, 0)
	case "{}":
		return pack.AppendMapHeader(nil, 0)
	case "1":
		return pack.AppendInt(nil, 1)
	}
	return pack.AppendNil(nil)
}

// DecodePayload reads the first frame of an answer.
func (l *Line) DecodePayload(frame []byte) (*Payload, error) {
	p := new(Payload)
	return p, l.decode("NixlHandshakePayload", frame, p)
}

// DecodeMetadata reads the metadata of an answer. As in a real engine, a missing key of the line is an error, and an unknown one is not.
func (l *Line) DecodeMetadata(p *Payload) (*Metadata, error) {
	m := new(Metadata)
	if err := l.decode("NixlAgentMetadata", p.Metadata, m); err != nil {
		return nil, err
	}
	return m, m.Check()
}

func (l *Line) decode(name string, text []byte, to any) error {
	var keys map[string]msgpack.RawMessage
	err := pack.Validate(text)
	if err == nil {
		err = msgpack.Unmarshal(text, &keys)
	}
	if err == nil {
		err = msgpack.Unmarshal(text, to)
	}
	var missing []string
	for _, f := range l.Structs[name].Fields {
		if _, has := keys[f.Name]; !has && f.Required {
			missing = append(missing, f.Name)
		}
	}
	if err == nil && missing != nil {
		err = fmt.Errorf("it has no %s", strings.Join(missing, ", "))
	}
	if err != nil {
		return fmt.Errorf("%s of vLLM %s: %w", name, l.Name, err)
	}
	return nil
}
