// Package frontend is a vLLM frontend in 150 lines: it waits for one engine core, sends requests of token ids, and returns
// the tokens of the answers. It takes the place of your gateway or router; it uses nothing of vllm-vcr.
package frontend

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/vmihailenco/msgpack/v5"
)

// Frontend serves one engine on loopback.
type Frontend struct {
	handshake, input, output zmq4.Socket
	engine                   []byte // the identity of the engine's sockets
}

// Listen opens the three sockets that an engine dials.
func Listen(ctx context.Context) (*Frontend, error) {
	f := &Frontend{handshake: zmq4.NewRouter(ctx), input: zmq4.NewRouter(ctx), output: zmq4.NewPull(ctx)}
	for _, socket := range []zmq4.Socket{f.handshake, f.input, f.output} {
		if err := socket.Listen("tcp://127.0.0.1:0"); err != nil {
			f.Close()
			return nil, err
		}
	}
	return f, nil
}

// Close closes the sockets.
func (f *Frontend) Close() {
	f.handshake.Close()
	f.input.Close()
	f.output.Close()
}

// Handshake is the address that the engine is started with.
func (f *Frontend) Handshake() string { return address(f.handshake.Addr()) }

func address(a net.Addr) string { return "tcp://" + a.String() }

// Accept waits until the engine serves: HELLO, answered by the addresses of the other sockets, the registration, READY.
func (f *Frontend) Accept() error {
	hello, err := f.handshake.Recv()
	if err != nil {
		return err
	}
	f.engine = hello.Frames[0]
	if err := expectStatus(hello, "HELLO"); err != nil {
		return err
	}
	init, err := msgpack.Marshal(map[string]any{
		"addresses": map[string]any{
			"inputs":                         []string{address(f.input.Addr())},
			"outputs":                        []string{address(f.output.Addr())},
			"coordinator_input":              nil,
			"coordinator_output":             nil,
			"frontend_stats_publish_address": nil,
		},
		"parallel_config": map[string]any{},
	})
	if err != nil {
		return err
	}
	if err := f.handshake.Send(zmq4.NewMsgFrom(f.engine, init)); err != nil {
		return err
	}
	registration, err := f.input.Recv()
	if err != nil {
		return err
	}
	if !bytes.Equal(registration.Frames[0], f.engine) {
		return fmt.Errorf("engine %x registered, and engine %x said HELLO", registration.Frames[0], f.engine)
	}
	ready, err := f.handshake.Recv()
	if err != nil {
		return err
	}
	return expectStatus(ready, "READY")
}

func expectStatus(message zmq4.Msg, want string) error {
	var status struct {
		Status string `msgpack:"status"`
	}
	if err := msgpack.Unmarshal(message.Frames[len(message.Frames)-1], &status); err != nil {
		return err
	}
	if status.Status != want {
		return fmt.Errorf("the engine sent %s, want %s", status.Status, want)
	}
	return nil
}

// Complete sends a prompt and returns the tokens of its answer. One request runs at a time.
func (f *Frontend) Complete(id string, prompt []uint32, maxTokens int) ([]uint32, error) {
	// An EngineCoreRequest is an array of 22 fields in vLLM 0.33. What is nil has no value.
	request := make([]any, 22)
	request[0] = id
	request[1] = prompt
	request[3] = map[string]any{"max_tokens": maxTokens}
	request[5] = float64(time.Now().UnixMicro()) / 1e6 // arrival_time
	request[11] = 0                                    // client_index
	request[12] = 0                                    // current_wave
	request[13] = 0                                    // priority
	request[15] = false                                // resumable
	request[16] = strings.SplitN(id, "-", 2)[0]        // external_req_id
	request[19] = false                                // abort_immediately
	payload, err := msgpack.Marshal(request)
	if err != nil {
		return nil, err
	}
	const add = "\x00" // the type of the message
	if err := f.input.Send(zmq4.NewMsgFrom(f.engine, []byte(add), payload)); err != nil {
		return nil, err
	}
	var tokens []uint32
	for {
		message, err := f.output.Recv()
		if err != nil {
			return tokens, err
		}
		said, finished, err := outputOf(message.Frames[0], id)
		tokens = append(tokens, said...)
		if err != nil || finished {
			return tokens, err
		}
	}
}

// outputOf reads the tokens of one request out of an EngineCoreOutputs array, and whether the request has ended.
func outputOf(payload []byte, id string) (tokens []uint32, finished bool, err error) {
	if string(payload) == "ENGINE_CORE_DEAD" {
		return nil, false, fmt.Errorf("the engine has died")
	}
	var outputs []msgpack.RawMessage
	if err := msgpack.Unmarshal(payload, &outputs); err != nil {
		return nil, false, err
	}
	var list [][]msgpack.RawMessage // of EngineCoreOutput
	if err := msgpack.Unmarshal(outputs[1], &list); err != nil {
		return nil, false, err
	}
	for _, output := range list {
		var of string
		var ids []uint32
		var finish *int
		for field, value := range map[int]any{0: &of, 1: &ids, 5: &finish} {
			if len(output[field]) == 0 { // nil
				continue
			}
			if err := msgpack.Unmarshal(output[field], value); err != nil {
				return nil, false, err
			}
		}
		if of != id {
			continue
		}
		tokens, finished = append(tokens, ids...), finish != nil
	}
	return tokens, finished, nil
}
