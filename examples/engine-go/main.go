// Command engine-go is a vLLM engine core that replays a trace: engine-go HANDSHAKE TRACE LINE MATCH. It uses nothing of
// vllm-vcr, and is the program of docs/engine-author.md.
package main

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/hex"
	"encoding/json"
	"log"
	"os"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/vmihailenco/msgpack/v5"
)

const add, abort, utility = 0, 1, 3 // request types

var (
	finishReasons = map[string]int{"": 1, "stop": 0, "length": 1, "abort": 2, "error": 3, "repetition": 4}
	utilities     = map[string]any{"is_sleeping": false, "is_scheduler_paused": false, "reset_prefix_cache": true, "reset_mm_cache": nil}
	// For each line: fields of EngineCoreOutput, fields of EngineCoreOutputs, index of num_nans_in_logits.
	layouts = map[string][3]int{
		"0.25": {13, 8, 12}, "0.26": {14, 8, 13}, "0.27": {14, 8, 13}, "0.28": {16, 8, 13}, "0.29": {17, 8, 13},
		"0.30": {17, 8, 13}, "0.31": {18, 8, 13}, "0.32": {18, 9, 13}, "0.33": {19, 9, 13},
	}
	replayID = regexp.MustCompile(`replay-(\d+)`)
)

// record is a line of the trace. The first line has only meta, and the others have all but meta.
type record struct {
	Meta struct {
		ReadyResponse string `json:"ready_response_hex"`
	} `json:"meta"`
	Arrival         *float64  `json:"arrival_ms"`
	Prompt          []uint32  `json:"prompt_token_ids"`
	Tokens          []uint32  `json:"output_token_ids"`
	Gaps            []float64 `json:"itl_ms"`
	Sizes           []int     `json:"itl_tokens"`
	FinishReason    string    `json:"finish_reason"`
	EndedByFrontend bool      `json:"ended_by_frontend"`
}

// refused is the record of requests for log-probabilities, which this engine does not have.
var refused = &record{FinishReason: "error"}

// sampling is what this engine reads of SamplingParams.
type sampling struct {
	StopTokenIDs   []uint32 `msgpack:"stop_token_ids"`
	Logprobs       *int     `msgpack:"logprobs"`
	PromptLogprobs *int     `msgpack:"prompt_logprobs"`
}

// request is one that runs: the sizes of the steps that are left, and their tokens.
type request struct {
	id     string
	record *record
	stops  []uint32
	sizes  []int
	tokens []uint32
}

type engine struct {
	layout        [3]int
	byIndex       bool
	records       []*record
	unused        []*record
	input, output zmq4.Socket
	running       []*request
}

func main() {
	handshakeAddress, trace, line, match := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	e := &engine{layout: layouts[line], byIndex: match == "index"}
	file := must(os.Open(trace))
	lines := json.NewDecoder(must(gzip.NewReader(file)))
	var first record
	check(lines.Decode(&first))
	for lines.More() {
		r := &record{}
		check(lines.Decode(r))
		if r.Arrival != nil {
			e.records = append(e.records, r)
		}
	}
	slices.SortStableFunc(e.records, func(a, b *record) int { return cmp.Compare(*a.Arrival, *b.Arrival) })
	e.unused = slices.Clone(e.records)

	handshake := connect(zmq4.NewDealer, handshakeAddress)
	status := func(s string) []byte {
		return must(msgpack.Marshal(map[string]any{"status": s, "local": false, "headless": true}))
	}
	check(handshake.Send(zmq4.NewMsg(status("HELLO"))))
	var init struct {
		Addresses struct {
			Inputs  []string `msgpack:"inputs"`
			Outputs []string `msgpack:"outputs"`
		} `msgpack:"addresses"`
	}
	check(msgpack.Unmarshal(must(handshake.Recv()).Bytes(), &init))
	e.input, e.output = connect(zmq4.NewDealer, init.Addresses.Inputs[0]), connect(zmq4.NewPush, init.Addresses.Outputs[0])
	check(e.input.Send(zmq4.NewMsg(must(hex.DecodeString(first.Meta.ReadyResponse))))) // the registration
	check(handshake.Send(zmq4.NewMsg(status("READY"))))
	e.serve()
}

// connect dials as engine 0: the identity is its index, 2 bytes, little-endian.
func connect(kind func(context.Context, ...zmq4.Option) zmq4.Socket, address string) zmq4.Socket {
	socket := kind(context.Background(), zmq4.WithID(zmq4.SocketIdentity("\x00\x00")))
	check(socket.Dial(address))
	return socket
}

// serve takes what has come, and makes a step while requests run.
func (e *engine) serve() {
	messages := make(chan zmq4.Msg, 1000)
	go func() {
		for {
			messages <- must(e.input.Recv())
		}
	}()
	for {
		if len(e.running) == 0 {
			e.take(<-messages)
		}
		for len(messages) > 0 {
			e.take(<-messages)
		}
		e.step()
	}
}

func (e *engine) take(message zmq4.Msg) {
	payload := msgpack.NewDecoder(bytes.NewReader(message.Frames[1]))
	switch message.Frames[0][0] {
	case add:
		var id string
		var prompt []uint32
		var images any
		var params sampling
		must(payload.DecodeArrayLen()) // EngineCoreRequest
		check(payload.DecodeMulti(&id, &prompt, &images, &params))
		r := e.find(id, prompt)
		if params.Logprobs != nil || params.PromptLogprobs != nil {
			r = refused
		}
		sizes := r.Sizes
		if sizes == nil {
			sizes = slices.Repeat([]int{1}, len(r.Gaps))
		}
		firstSize := len(r.Tokens)
		for _, n := range sizes {
			firstSize -= n
		}
		e.running = append(e.running, &request{id, r, params.StopTokenIDs, append([]int{firstSize}, sizes...), r.Tokens})
	case abort:
		var ids []string
		check(payload.Decode(&ids))
		e.running = slices.DeleteFunc(e.running, func(r *request) bool { return slices.Contains(ids, r.id) })
	case utility:
		var client int
		var callID uint64
		var method string
		must(payload.DecodeArrayLen())
		check(payload.DecodeMulti(&client, &callID, &method))
		if value, known := utilities[method]; known {
			e.send(nil, []any{callID, nil, []any{nil, value}})
		} else {
			e.send(nil, []any{callID, method + " is not supported", nil})
		}
	}
}

// find takes the number in "replay-7" for record 7, counted from 0 in the order of arrival; or the next record of the prompt.
func (e *engine) find(id string, prompt []uint32) *record {
	if e.byIndex {
		return e.records[must(strconv.Atoi(replayID.FindStringSubmatch(id)[1]))]
	}
	i := slices.IndexFunc(e.unused, func(r *record) bool { return slices.Equal(r.Prompt, prompt) })
	r := e.unused[i]
	e.unused = slices.Delete(e.unused, i, i+1)
	return r
}

// step sends the next tokens of every request.
func (e *engine) step() {
	var outputs []any
	for _, r := range e.running {
		out := make([]any, e.layout[0]) // EngineCoreOutput
		tokens := r.tokens[:r.sizes[0]]
		out[0], out[1], out[e.layout[2]] = r.id, append([]uint32{}, tokens...), 0
		r.tokens, r.sizes = r.tokens[r.sizes[0]:], r.sizes[1:]
		if len(r.sizes) == 0 {
			reason := r.record.FinishReason
			if r.record.EndedByFrontend {
				reason = "length"
			}
			out[5] = finishReasons[reason]
			if reason == "repetition" {
				out[6] = "repetition_detected"
			} else if last := tokens[max(0, len(tokens)-1):]; reason == "stop" && len(last) == 1 && slices.Contains(r.stops, last[0]) {
				out[6] = last[0]
			}
		}
		outputs = append(outputs, out)
	}
	if len(outputs) > 0 {
		e.send(outputs, nil)
	}
	e.running = slices.DeleteFunc(e.running, func(r *request) bool { return len(r.sizes) == 0 })
}

var start = time.Now()

func (e *engine) send(outputs []any, utilityOutput any) {
	message := make([]any, e.layout[1]) // EngineCoreOutputs
	message[0], message[1], message[3], message[4] = 0, append([]any{}, outputs...), time.Since(start).Seconds(), utilityOutput
	check(e.output.Send(zmq4.NewMsg(must(msgpack.Marshal(message)))))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}
