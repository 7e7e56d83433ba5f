package wirediff

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// The parties of the boundary of NIXL: a prefill or decode engine, or a sidecar or router that carries kv_transfer_params, each written
// for the older release, with engines of the newer one.
const (
	Prefill  Party = "prefill engines"
	Decode   Party = "decode engines"
	Sidecars Party = "sidecars"
)

// nixlRoutes are the ways of its messages and structs.
var nixlRoutes = routes{
	"handshake request": toPrefill, "handshake reply": toDecode, "NixlHandshakePayload": toDecode, "NixlAgentMetadata": toDecode,
	"kv_transfer_params": throughSidecar, "kv_transfer_params read": toDecode,
}

// nixlParties returns which sides of the boundary fail.
func (way route) nixlParties(readers, writers bool) []Party {
	var parties []Party
	if readers && way&(toDecode|throughSidecar) != 0 || writers && way&toPrefill != 0 {
		parties = append(parties, Decode)
	}
	if readers && way&toPrefill != 0 || writers && way&(toDecode|throughSidecar) != 0 {
		parties = append(parties, Prefill)
	}
	if readers && way&throughSidecar != 0 {
		parties = append(parties, Sidecars)
	}
	return parties
}

// compareNIXL lists what changed between prefill and decode; nil if one of the profiles does not have that boundary. It belongs to no
// verdict about the engine core.
func compareNIXL(a, b *protocol.Profile, from, to string) []Change {
	was, is := a.Nixl(), b.Nixl()
	if was == nil || is == nil {
		return nil
	}
	of := func(p *protocol.Profile, n *protocol.Boundary) *protocol.Profile {
		return &protocol.Profile{Line: p.Line, Version: p.Version, Commit: p.Commit, Messages: n.Messages, Constants: n.Constants, Structs: n.Structs}
	}
	c := &comparison{a: of(a, was), b: of(b, is), from: from, to: to, routes: nixlRoutes}
	for group, compare := range []func(){c.messages, c.structs, c.nixlConstants} {
		c.group = group
		compare()
	}
	for i := range c.changes {
		ch := &c.changes[i]
		key := strings.TrimPrefix(ch.Subject, "kv_transfer_params.")
		needed := func(k protocol.Key) bool { return k.Name == key && !k.Optional }
		if ch.Kind == KeyAdded && ch.Struct == "kv_transfer_params" && !slices.ContainsFunc(is.Messages["kv_transfer_params read"].Keys, needed) {
			ch.Level, ch.Breaks, ch.Reason = Compatible, []Party{}, "decode engines of "+to+" work without it"
		}
		ch.apply, ch.Readers, ch.Needs = nil, map[Reader]bool{}, Needs{FromProfile, "nothing: it records no side channel"}
		if name, is := strings.CutPrefix(ch.Subject, "hash of "); is && name != "vllm_version" && ch.Kind != ConstantRemoved {
			ch.Needs.Player = "internal/engine/nixl/hash.go has the values of the hash: compare " + name
		}
	}
	d := Diff{Changes: c.changes}
	d.sort()
	return d.Changes
}

// nixlConstants compares what the hash is computed from, and what else both sides must agree on.
func (c *comparison) nixlConstants() {
	add := func(kind Kind, name, before, after string, where Where) {
		ch := Change{Kind: kind, Subject: name, Before: before, After: after, Where: where}
		switch {
		case strings.HasPrefix(name, "hash ") || name == "NIXL_CONNECTOR_VERSION":
			ch.Breaks = []Party{Decode, Prefill}
			ch.Reason = fmt.Sprintf("the compatibility hash of %s is another one: the decode engine refuses the handshake, unless enforce_handshake_compat is false", c.to)
		case strings.HasPrefix(name, "notification "):
			ch.Level, ch.Reason = Informational, "the expression changed: compare what is sent"
		default:
			ch.Breaks, ch.Reason = []Party{Decode, Prefill}, "the two sides use different values for it"
		}
		c.add(ch)
	}
	eachName(c.a.Constants, c.b.Constants, func(name string, v protocol.Constant) {
		add(ConstantAdded, name, "", value(v.Value), c.where(c.b, v.Place, 0))
	}, func(name string, v protocol.Constant) {
		add(ConstantRemoved, name, value(v.Value), "", c.where(c.a, v.Place, 0))
	}, func(name string, a, b protocol.Constant) {
		if name == "hash of vllm_version" && c.a.Version != c.b.Version { // the value, as the expression is the same
			add(ConstantValue, name, c.a.Version, c.b.Version, c.where(c.b, b.Place, 0))
		} else if !sameJSON(a.Value, b.Value) {
			add(ConstantValue, name, value(a.Value), value(b.Value), c.where(c.b, b.Place, 0))
		}
	})
}
