package drift

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"

	"github.com/vllm-vcr/conformance/internal/protocol"
)

// Fingerprint tells two wires apart, in 16 hexadecimal digits: it is the same for profiles that say the same of the wire,
// whichever release they were read from and wherever that declares it. It is "" for no profile.
func Fingerprint(p *protocol.Profile) string {
	if p == nil {
		return ""
	}
	bare := &protocol.Profile{
		Messages: maps.Clone(p.Messages), Enums: maps.Clone(p.Enums), Constants: maps.Clone(p.Constants),
		Utilities: maps.Clone(p.Utilities), Structs: maps.Clone(p.Structs),
	}
	displace(bare)
	sum := sha256.New()
	if err := protocol.WriteProfile(sum, bare); err != nil {
		return "" // a digest takes whatever is written to it
	}
	return hex.EncodeToString(sum.Sum(nil)[:8])
}

// displace takes all places out of a profile, whose maps are its own.
func displace(p *protocol.Profile) {
	for name, m := range p.Messages {
		m.Place, m.Keys = protocol.Place{}, each(m.Keys, func(k *protocol.Key) { k.At = 0 })
		p.Messages[name] = m
	}
	for name, e := range p.Enums {
		e.Place, e.Members = protocol.Place{}, each(e.Members, func(m *protocol.Member) { m.At = 0 })
		p.Enums[name] = e
	}
	for name, c := range p.Constants {
		c.Place = protocol.Place{}
		p.Constants[name] = c
	}
	for name, u := range p.Utilities {
		u.Place = protocol.Place{}
		p.Utilities[name] = u
	}
	for name, s := range p.Structs {
		s.Place, s.Fields = protocol.Place{}, each(s.Fields, func(f *protocol.Field) { f.At, f.Module = 0, "" })
		p.Structs[name] = s
	}
}

// each returns a copy of items that were changed.
func each[T any](items []T, change func(*T)) []T {
	changed := make([]T, len(items))
	copy(changed, items)
	for i := range changed {
		change(&changed[i])
	}
	return changed
}
