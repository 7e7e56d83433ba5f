package protocol_test

import (
	"fmt"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// An engine answers one request in two steps; the frontend that sent it reads
// the answer. The frames that ZeroMQ would carry are passed by hand.
func Example() {
	codec, err := protocol.CodecFor("0.33")
	if err != nil {
		fmt.Println(err)
		return
	}
	// The frontend asks for two tokens.
	payload := codec.AppendRequest(nil, &protocol.Request{
		ID: "cmpl-1", PromptTokenIDs: []uint32{322, 319}, DataParallelRank: -1, HasSampling: true,
		Sampling: protocol.Sampling{
			MaxTokens: 2, HasMaxTokens: true, EOSTokenID: -1,
			Logprobs: protocol.NoLogprobs, PromptLogprobs: protocol.NoLogprobs,
		},
	})

	// The engine reads the request and sends an envelope a step.
	var request protocol.Request
	if err := codec.DecodeRequest(payload, &request); err != nil {
		fmt.Println(err)
		return
	}
	stream, batch := codec.NewStream(&request), codec.NewBatch(0)
	var outputs protocol.Outputs
	for i, out := range []protocol.Output{
		{Tokens: []uint32{42}, Prefill: &protocol.PrefillStats{Prompt: 2, Computed: 2}},
		{Tokens: []uint32{7}, Finish: protocol.FinishLength},
	} {
		batch.Reset()
		if err := batch.Add(stream, &out); err != nil {
			fmt.Println(err)
			return
		}
		message, err := batch.Finish(&protocol.SchedulerStats{Running: 1}, float64(i))
		if err != nil {
			fmt.Println(err)
			return
		}

		// The frontend reads the envelope.
		if err := codec.DecodeOutputs(message[0], &outputs); err != nil {
			fmt.Println(err)
			return
		}
		for _, o := range outputs.Outputs {
			fmt.Printf("%s: tokens %v, %v\n", o.ID, o.Tokens, o.Finish)
		}
	}
	fmt.Println(batch.Add(stream, &protocol.Output{Tokens: []uint32{9}}))
	// Output:
	// cmpl-1: tokens [42], unfinished
	// cmpl-1: tokens [7], length
	// request cmpl-1: the request has already finished
}
