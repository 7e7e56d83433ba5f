package frontendsuite

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/frontends/openai"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/player"
	"github.com/vllm-vcr/conformance/trace"
)

var realEngine = check.Check{Name: RealEngine, Levels: []check.Level{check.LevelCore}, Run: judged((*frontendCase).realEngine)}

// recordedRequest is a request of a recorded session that the frontend under test is asked for too, and what a real engine
// said to it.
type recordedRequest struct {
	id       string // in the recording
	prompt   []uint32
	logprobs int // asked for, protocol.NoLogprobs without
	ofPrompt int // log-probabilities of the prompt
	tokens   []uint32
	finish   protocol.FinishReason

	now    *heard // the request of the frontend under test
	answer chan *openai.Reply
}

// realEngine plays a recorded session of a real engine to the frontend: all that the engine said, with the request ids of
// the frontend under test. Its statistics, log-probabilities and events are those of vLLM, which no player makes up in full.
// The same requests are open at the same time. The frontend must answer each with the recorded tokens, and go on serving.
func (k *frontendCase) realEngine() {
	k.learn()
	requests, err := playable(k.codec, k.golden.Frames)
	if err != nil || len(requests) == 0 {
		k.AddNote("not judged: the recorded session has no request that can be made again")
		return
	}
	byID, refused := map[string]*recordedRequest{}, 0
	for i, r := range requests {
		if k.form != promptIDs {
			r.prompt = k.prompt() // the engine's answers do not depend on it
		}
		if k.form != promptIDs && r.ofPrompt > 0 || k.form == promptChat && r.logprobs > 0 || !k.makeAgain(r, i%2 == 1) {
			refused++
			continue
		}
		byID[r.id] = r
	}
	messages := 0
	for i := range k.golden.Frames {
		m := &k.golden.Frames[i]
		if !saidToFrontend(m) {
			continue
		}
		sent, err := k.sayAgain(m.Frames, byID)
		if err != nil {
			code, _ := k.loss(err)
			k.fail(check.Failed(code, "the frontend takes no more messages after %d of a real engine: %v\n%s", messages, err, k.lastWords()))
			return
		}
		messages += sent
	}
	k.Asserted += messages
	for i, r := range requests {
		if byID[r.id] != nil {
			k.answeredAsRecorded(i, r)
		}
	}
	k.stillServes(safetext.Count(messages, "message")+" of a real engine", "GET /health")
	note := fmt.Sprintf("%s of %s, which answered %s", safetext.Count(messages, "message"), k.golden.Registered.ID, safetext.Count(len(byID), "request"))
	if refused > 0 {
		note += fmt.Sprintf("; %d more were refused by the frontend", refused)
	}
	k.AddNote(note)
}

// saidToFrontend reports whether a recorded message is one of the first engine to its first frontend process.
func saidToFrontend(m *trace.Message) bool {
	return m.Note == "" && m.Channel == "output" && m.Direction == trace.EngineToFrontend && m.Rank == 0 && m.Client == 0 && len(m.Frames) > 0
}

// playable are the requests of a session that can be made through HTTP by their token ids, and that a real engine answered to
// their end.
func playable(codec *protocol.Codec, messages []trace.Message) ([]*recordedRequest, error) {
	var all []*recordedRequest
	byID := map[string]*recordedRequest{}
	for i := range messages {
		m := &messages[i]
		switch {
		case saidToFrontend(m):
			var o protocol.Outputs
			if err := codec.DecodeOutputs(m.Frames[0], &o); err != nil {
				return nil, err
			}
			for j := range o.Outputs {
				if r := byID[string(o.Outputs[j].ID)]; r != nil {
					r.tokens = append(r.tokens, o.Outputs[j].Tokens...)
					r.finish = o.Outputs[j].Finish
				}
			}
		case m.Channel == "input" && m.Direction == trace.FrontendToEngine && m.Rank == 0 && m.Client == 0 && len(m.Frames) > 1 &&
			len(m.Frames[0]) == 1 && m.Frames[0][0] == protocol.TypeAdd:
			var asked protocol.Request
			if err := codec.DecodeRequest(m.Frames[1], &asked); err != nil {
				return nil, err
			}
			if len(asked.PromptTokenIDs) == 0 || asked.Pooling != nil || asked.MMFeatures != nil || asked.PromptEmbeds != nil || asked.Resumable || byID[asked.ID] != nil {
				continue
			}
			r := &recordedRequest{
				id: asked.ID, prompt: slices.Clone(asked.PromptTokenIDs), logprobs: asked.Sampling.Logprobs, ofPrompt: asked.Sampling.PromptLogprobs,
				answer: make(chan *openai.Reply, 1),
			}
			byID[r.id] = r
			all = append(all, r)
		}
	}
	return slices.DeleteFunc(all, func(r *recordedRequest) bool {
		whole := r.finish == protocol.FinishLength || r.finish == protocol.FinishStop
		return !whole || len(r.tokens) == 0
	}), nil
}

// makeAgain sends a request and waits until it has reached the player, which never answers it. A frontend may refuse it: its
// model may have fewer ids, or a shorter context.
func (k *frontendCase) makeAgain(r *recordedRequest, stream bool) bool {
	k.speaker.plan(r.prompt, plan{script: player.Script{Tokens: r.tokens[:1], FirstToken: stuck, Finish: protocol.FinishLength}})
	body := k.body(r.prompt, len(r.tokens))
	if r.logprobs > 0 {
		body["logprobs"] = r.logprobs
	}
	if r.ofPrompt > 0 {
		body["prompt_logprobs"], stream = r.ofPrompt, false
	}
	if stream {
		body = body.with(streamed)
	}
	mark := k.ledger.mark()
	ctx, stop := k.patience()
	defer stop()
	go func() {
		defer stop()
		r.answer <- k.quietly(k.ctx, body)
	}()
	r.now = first(k.ledger.await(ctx, mark, 1, asks(r.prompt)))
	return r.now != nil
}

// sayAgain sends a recorded message of the engine to the frontend, as far as it answers requests that were made again: to
// each of its processes what is for that one. It returns how many messages it made of it.
func (k *frontendCase) sayAgain(frames [][]byte, byID map[string]*recordedRequest) (sent int, err error) {
	names := k.codec.Profile().Structs["EngineCoreOutputs"]
	outputs, finished, utility := names.Index("outputs"), names.Index("finished_requests"), names.Index("utility_output")
	fields, err := pack.Elements(frames[0])
	if err != nil || len(fields) <= outputs {
		return 0, err
	}
	if utility < len(fields) && !isNil(fields[utility]) {
		return 0, nil // it answers a call that was not made
	}
	said, err := pack.Elements(fields[outputs])
	if err != nil {
		return 0, err
	}
	perClient := map[int][][]byte{}
	for _, output := range said {
		parts, err := pack.Elements(output)
		if err != nil || len(parts) == 0 {
			return 0, err
		}
		cur := pack.NewCursor(parts[0])
		id, err := cur.StrString()
		if err != nil {
			return 0, err
		}
		r := byID[id]
		if r == nil {
			continue
		}
		parts[0] = pack.AppendString(nil, r.now.request.ID)
		perClient[r.now.client] = append(perClient[r.now.client], pack.AppendArray(nil, parts...))
	}
	if len(said) == 0 {
		perClient[0] = nil // statistics only
	}
	for client, own := range perClient {
		fields[outputs] = pack.AppendArray(nil, own...)
		if finished >= 0 && finished < len(fields) {
			fields[finished] = pack.AppendNil(nil) // ids of other requests
		}
		if err := k.tap.say(client, append([][]byte{pack.AppendArray(nil, fields...)}, frames[1:]...)...); err != nil {
			return sent, err
		}
		sent++
	}
	return sent, nil
}

// answeredAsRecorded compares the answer of a request with what the real engine said.
func (k *frontendCase) answeredAsRecorded(i int, r *recordedRequest) {
	what := fmt.Sprintf("recorded request %d (%s)", i, r.id)
	ctx, stop := k.patience()
	defer stop()
	var got *openai.Reply
	select {
	case got = <-r.answer:
	case <-ctx.Done():
		k.Asserted++
		if errors.Is(context.Cause(ctx), errNoAnswer) {
			k.fail(check.Failed(CodeHangs, "%s: no answer within %v after the last message of the engine", what, k.limit).Compared("an answer", "none"))
		}
		return
	}
	k.Asserted++
	if got.Status != http.StatusOK || got.Failure != "" {
		k.fail(check.Failed(CodeHTTP, "%s: POST %s: status %d: %s", what, k.route(), got.Status, got.Failure).Compared(http.StatusOK, got.Status))
		return
	}
	k.sameTokens(what, got, r.tokens)
	k.ended(what, got, r.finish.String())
	if k.form == promptIDs {
		k.counted(what, got, len(r.prompt), len(r.tokens))
	}
}

func isNil(raw []byte) bool {
	cur := pack.NewCursor(raw)
	return cur.Nil()
}

// recordedGolden is the golden whose raw messages are played: the session that has the most of the wire.
func recordedGolden(goldens []manifest.Golden) (manifest.Golden, bool) {
	for _, wanted := range []func(manifest.Golden) bool{
		func(g manifest.Golden) bool { return g.ID == "frames-busy" },
		func(g manifest.Golden) bool { return g.Role == manifest.Wire },
	} {
		if at := slices.IndexFunc(goldens, wanted); at >= 0 {
			return goldens[at], true
		}
	}
	return manifest.Golden{}, false
}
