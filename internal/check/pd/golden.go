package pd

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/engine/kvtransfer"
	"github.com/vllm-vcr/conformance/internal/engine/nixl"
	"github.com/vllm-vcr/conformance/internal/engine/nixl/agent"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
	"github.com/vllm-vcr/conformance/trace"
)

// Codes of what a golden of role nixl shows of the player.
const (
	CodeGoldenParams    check.Code = "D015" // kv_transfer_params are not those of the real engine
	CodeGoldenHandshake check.Code = "D016" // the answer to a handshake is another one
	CodeGoldenDecode    check.Code = "D017" // a request for a handshake or a notification is another one
	CodeGoldenAnswer    check.Code = "D018" // a request does not end as with the real engine
)

//go:embed golden.md
var goldenCodes string

// GoldenCheck compares the player with the engines of a golden of role nixl.
var GoldenCheck = check.Check{Name: check.NIXL, Codes: goldenCodes, Run: checkGolden}

// tinyModel is the part of config.json of the tiny model that the form of its KV cache follows from.
const tinyModel = `{"num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 32, "dtype": "float32"}`

// checkGolden has a player say in the place of the engine of a golden what that said, to the same requests and handshakes.
func checkGolden(ctx context.Context, e *check.Env, g *check.Golden, c check.Case) (f check.Outcome, err error) {
	line, err := nixl.Load(check.ProfileName(c.Line))
	if err != nil {
		return f, err
	}
	if trace.Or(g.Trace.Meta.Model, "") != "tiny" {
		return f, fmt.Errorf("%s: its engines have the model %q: the form of the KV cache is known of testdata/model/tiny alone", g.Location, trace.Or(g.Trace.Meta.Model, ""))
	}
	env := &check.Env{Engine: check.Player, Timeouts: e.Timeouts, Log: slog.New(slog.DiscardHandler), Context: e.Context, Versions: map[string]string{}}
	t := &replayed{g: g, side: &side{env: env, nixl: line, f: &f, open: map[string]*reply{}, called: map[uint64]bool{}}}
	err = f.End(t.run(ctx, env, c))
	return f, err
}

// replayed is the engine of a golden, with the player in its place. What the other side said is said again.
type replayed struct {
	*side  // of the player
	g      *check.Golden
	hash   string      // of the answer that metadata read last
	other  agent.Agent // of the other side, whose memory has what its metadata says
	peer   agent.Peer  // the agent of the player
	server *nixl.Server
	asked  chan []byte // what the player sent to the other side's side channel
}

// run plays the messages one after the other.
func (t *replayed) run(ctx context.Context, e *check.Env, c check.Case) error {
	own, theirs := t.metadata(trace.EngineToFrontend), t.metadata(trace.FrontendToEngine)
	if own == nil {
		return check.Ends(CodeGoldenHandshake, "%s: its engine answers no handshake, or has a KV cache of more than %d tokens: record it with conform --frames-out", t.g.Location, maxTokens)
	}
	if err := t.standIn(ctx, theirs); err != nil {
		return err
	}
	defer t.close()
	opt := player.Options{
		VLLMVersion: check.PlayedVersion(c.Line), Trace: t.g.Trace, Source: player.Random{},
		Transfer: &player.Transfer{EngineID: own.EngineID, Host: "127.0.0.1", Lease: time.Hour},
		KVCache:  player.KVCacheOptions{BlockSize: own.BlockSize, NumGPUBlocks: own.Blocks},
	}
	opt.Transfer.Open = func(engine *kvtransfer.Config, form kvtransfer.Form) (kvtransfer.DataPlane, error) {
		engine.Port = 0 // any
		options := nixl.Options{Config: []byte(tinyModel), AttnBackend: own.AttnBackend}
		options.Model, _ = check.EngineOption(t.g.Trace.Meta, "model")
		options.DType, _ = check.EngineOption(t.g.Trace.Meta, "dtype")
		plane, err := nixl.Open(engine, form, options, func(length int64) (agent.Agent, error) {
			return agent.Start(ctx, agent.Options{Python: agent.InMemory, Length: length})
		}, e.Log)
		if err == nil {
			t.address = nixl.JoinAddress(engine.Host, engine.Port)
		}
		return plane, err
	}
	var err error
	if t.s, err = e.Start(ctx, t.g.Codec, opt); err != nil {
		return err
	}
	defer t.s.Close()
	for i := 0; i < len(t.g.Frames) && err == nil; i++ {
		var cancel context.CancelFunc
		t.ctx, cancel = context.WithTimeout(t.s.Context, e.Timeouts.Idle)
		err = t.message(&t.g.Frames[i])
		cancel()
	}
	return err
}

// metadata are those of the first answer to a handshake in a direction, nil without one.
func (t *replayed) metadata(direction string) *nixl.Metadata {
	for _, m := range t.g.Frames {
		if m.Channel == "nixl_reply" && m.Direction == direction && len(m.Frames) > 0 {
			p, err := t.nixl.DecodePayload(m.Frames[0])
			if err != nil {
				continue
			}
			t.hash = p.Hash
			if found, err := t.nixl.DecodeMetadata(p); err == nil && isSmall(found) {
				return found
			}
		}
	}
	return nil
}

// The limits of a KV cache in a golden, for a player has as much memory.
const maxTokens, maxBytes = 1 << 17, 1 << 28

func isSmall(m *nixl.Metadata) bool {
	size := 0
	for i := range m.BlockLens {
		size += min(m.Stride(i), maxBytes/m.Blocks+1) * m.Blocks
	}
	return m.Blocks <= maxTokens/m.BlockSize && size <= maxBytes
}

// standIn opens the agent of the other side, and its side channel if it is a prefill engine.
func (t *replayed) standIn(ctx context.Context, m *nixl.Metadata) (err error) {
	length := 0
	if m != nil {
		for i := range m.BlockLens {
			length += m.Stride(i) * m.Blocks
		}
	}
	if t.other, err = agent.Start(ctx, agent.Options{Python: agent.InMemory, Name: "other", Length: int64(max(length, 1))}); err != nil || m == nil {
		return err
	}
	base, _ := t.other.Region()
	m.AgentMetadata = t.other.Metadata()
	for i := range m.BaseAddresses {
		m.BaseAddresses[i] = base
		base += uint64(m.Stride(i) * m.Blocks)
	}
	payload := t.nixl.Encode(m, t.hash)
	t.asked = make(chan []byte, len(t.g.Frames))
	t.server, err = t.nixl.Serve("127.0.0.1:0", func(_ nixl.Rank, request []byte) []byte {
		t.asked <- request
		return payload
	}, nil, slog.New(slog.DiscardHandler))
	return err
}

func (t *replayed) close() {
	if t.server != nil {
		t.server.Close()
	}
	t.other.Close()
}

// message has the player take a message of the other side, or waits for what it says in the place of the engine.
func (t *replayed) message(m *trace.Message) error {
	where := fmt.Sprintf("%s: line %d", t.g.Location, m.Line)
	if len(m.Frames) == 0 || m.Channel == "handshake" || m.Channel == "input" && m.Direction == trace.EngineToFrontend {
		return nil
	}
	fromEngine := m.Direction == trace.EngineToFrontend
	switch {
	case m.Channel == "input":
		return t.resend(m)
	case m.Channel == "output":
		return t.compareOutputs(where, m.Frames[0])
	case m.Channel == "nixl_request" && fromEngine:
		return t.compareSent(where, "request for a handshake", m.Frames[0], t.asked)
	case m.Channel == "nixl_request":
		pp, tp, _, err := t.nixl.ParseRequest(m.Frames[0])
		if err == nil {
			t.answer, err = t.nixl.Handshake(t.ctx, t.address, pp, tp)
		}
		if err != nil {
			return check.Ends(CodeGoldenHandshake, "%s: %v", where, err)
		}
	case m.Channel == "nixl_reply" && fromEngine:
		return t.compareAnswer(where, m.Frames[0])
	case m.Channel == "nixl_notification" && fromEngine:
		return t.compareSent(where, "notification", m.Frames[0], nil)
	case m.Channel == "nixl_notification":
		return t.other.Notify(t.ctx, t.peer, string(m.Frames[0]))
	}
	return nil
}

// resend sends a message of the frontend. A prompt is pulled from the side channel that is there now.
func (t *replayed) resend(m *trace.Message) error {
	if len(m.Frames) < 2 || len(m.Frames[0]) != 1 || m.Frames[0][0] != protocol.TypeAdd {
		return t.s.Front.SendRaw(0, m.Frames...)
	}
	var r protocol.Request
	if err := t.g.Codec.DecodeRequest(m.Frames[1], &r); err != nil {
		return err
	}
	if t.server != nil && r.Sampling.ExtraArgs != nil {
		port := protocol.ViewOf(r.Sampling.ExtraArgs).Field("kv_transfer_params").Field("remote_port")
		r.Sampling.ExtraArgs = withPort(r.Sampling.ExtraArgs, port, int(netip.MustParseAddrPort(t.server.Address()).Port()))
	}
	t.open[r.ID] = &reply{id: r.ID}
	return t.s.Front.Submit(&r)
}

// withPort is a message with another remote_port, if it has one.
func withPort(raw []byte, port protocol.Value, n int) []byte {
	if !port.Given() {
		return raw
	}
	return port.Set(pack.AppendInt(nil, int64(n)))
}

// compareOutputs waits for the end of the requests that end in a message of the engine.
func (t *replayed) compareOutputs(where string, frame []byte) error {
	var want protocol.Outputs
	if err := t.g.Codec.DecodeOutputs(frame, &want); err != nil {
		return err
	}
	for _, o := range want.Outputs {
		r := t.open[string(o.ID)]
		if o.Finish == protocol.Unfinished || r == nil {
			continue
		}
		if err := t.await(r); err != nil {
			return err
		}
		t.f.Asserted++
		if r.finish != o.Finish {
			t.f.Fail(check.Failed(CodeGoldenAnswer, "%s: request %s ends by %s with the player", where, r.id, r.finish).Compared(o.Finish, r.finish))
		}
		got := r.params
		if got != nil && o.KVTransfer != nil { // the port of the player is another one, and which blocks are free depends on when it heard of a read
			own, theirs := protocol.ViewOf(got).Field("remote_block_ids"), protocol.ViewOf(o.KVTransfer).Field("remote_block_ids")
			if own.Given() && theirs.Given() && own.Len() == theirs.Len() && own.At(0).Len() == theirs.At(0).Len() {
				got = own.Set(theirs.Bytes())
			}
			got = withPort(got, protocol.ViewOf(got).Field("remote_port"), int(protocol.ViewOf(o.KVTransfer).Field("remote_port").Count()))
		}
		if !bytes.Equal(got, o.KVTransfer) {
			t.f.Fail(check.Failed(CodeGoldenParams, "%s: request %s: kv_transfer_params are %s with the player, and %s with the engine", where, r.id, pack.Format(got), pack.Format(o.KVTransfer)).
				Compared(pack.Format(o.KVTransfer), pack.Format(got)))
		}
	}
	return nil
}

// compareAnswer compares the answer to a handshake, but for the addresses and what NIXL has in it.
func (t *replayed) compareAnswer(where string, frame []byte) error {
	want, err := t.nixl.DecodePayload(frame)
	if err != nil {
		return check.Ends(CodeGoldenHandshake, "%s: %v", where, err)
	}
	if t.answer == nil {
		return check.Ends(CodeGoldenHandshake, "%s: an answer that nobody asked for", where)
	}
	got, err := t.nixl.DecodeMetadata(t.answer.Payload)
	m, wantErr := t.nixl.DecodeMetadata(want)
	if err := errors.Join(err, wantErr); err != nil {
		return check.Ends(CodeGoldenHandshake, "%s: %v", where, err)
	}
	if t.peer, err = t.other.Connect(t.ctx, got.AgentMetadata); err != nil {
		return err
	}
	t.f.Asserted++
	if t.answer.Hash != want.Hash {
		t.f.Fail(check.Failed(CodeGoldenHandshake, "%s: the compatibility hash is %s with the player, and %s with the engine", where, t.answer.Hash, want.Hash).Compared(want.Hash, t.answer.Hash))
	}
	got.AgentMetadata, got.BaseAddresses = m.AgentMetadata, m.BaseAddresses
	if again := t.nixl.Encode(got, want.Hash); !bytes.Equal(again, frame) {
		t.f.Fail(check.Failed(CodeGoldenHandshake, "%s: the metadata are %+v with the player, and %+v with the engine", where, *got, *m).Compared(pack.Format(frame), pack.Format(again)))
	}
	return nil
}

// compareSent compares what the player sent to the other side: to its side channel, else to its agent.
func (t *replayed) compareSent(where, what string, want []byte, asked <-chan []byte) error {
	var got []byte
	notifications := t.other.Notifications()
	if asked != nil {
		notifications = nil
	}
	select {
	case got = <-asked:
	case n := <-notifications:
		got = []byte(n.Text)
	case <-t.ctx.Done():
		return check.Ends(CodeGoldenDecode, "%s: the player sends no %s", where, what)
	}
	t.f.Asserted++
	if !bytes.Equal(got, want) {
		t.f.Fail(check.Failed(CodeGoldenDecode, "%s: the %s is %q with the player, and %q with the engine", where, what, got, want).Compared(fmt.Sprintf("%q", want), fmt.Sprintf("%q", got)))
	}
	return nil
}
