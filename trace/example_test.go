package trace_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"

	"github.com/vllm-vcr/conformance/trace"
)

// Write a trace of one request and read it again.
func Example() {
	model, arrival := "Qwen/Qwen3-0.6B", 0.0
	var file bytes.Buffer
	w, err := trace.NewWriter(&file, false, trace.Meta{Model: &model})
	if err != nil {
		log.Fatal(err)
	}
	err = w.Write(&trace.Record{
		PromptTokens: 3, PromptTokenIDs: []uint32{5, 6, 7},
		OutputTokens: 4, OutputTokenIDs: []uint32{11, 12, 13, 14},
		ArrivalMs: &arrival, TTFTMs: 21.5, ITLMs: []float64{8, 7.5}, ITLTokens: []uint32{1, 2},
		Concurrency: 1, FinishReason: trace.FinishLength,
	})
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		log.Fatal(err)
	}

	r, err := trace.NewReader(&file, "run.jsonl", false, trace.Options{Strict: true})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("model", trace.Or(r.Meta().Model, "unknown"))
	for {
		var rec trace.Record
		if err := r.Next(&rec); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			log.Fatal(err)
		}
		fmt.Println(rec.OutputTokenIDs, "in chunks of", rec.Chunks(), rec.FinishReason)
	}
	// Output:
	// model Qwen/Qwen3-0.6B
	// [11 12 13 14] in chunks of [1 1 2] length
}

// Read a whole trace and compute what a manifest registers of it.
func ExampleRead() {
	t, err := trace.Read("../testdata/captures/0.33.0-multiturn-s7.trace.jsonl.gz", trace.Options{Strict: true})
	if err != nil {
		log.Fatal(err)
	}
	replayed := trace.ReplaySubset(t.Records)
	tokens := 0
	for _, i := range replayed {
		tokens += t.Records[i].OutputTokens
	}
	fmt.Println(len(t.Records), "records,", len(replayed), "replayed,", tokens, "tokens")
	fmt.Println(trace.TokensDigest(t.Records, replayed)[:16])
	// Output:
	// 180 records, 180 replayed, 4648 tokens
	// 57c026a7a63b3498
}

// A reader reports what is wrong and where.
func ExampleError() {
	const text = `{"prompt_tokens":3,"output_tokens":"four","ttft_ms":21.5}` + "\n"
	_, err := readAll(text)
	var fault *trace.Error
	if errors.As(err, &fault) {
		fmt.Println(fault.Line, fault.Field)
	}
	fmt.Println(err)
	// Output:
	// 1 output_tokens
	// run.jsonl: line 1, column 36: output_tokens: want an integer of at least 0, got '"'
}

func readAll(text string) (*trace.Trace, error) {
	r, err := trace.NewReader(bytes.NewReader([]byte(text)), "run.jsonl", false, trace.Options{})
	if err != nil {
		return nil, err
	}
	return r.ReadAll()
}

// Count the raw messages of a session by the side that sent them.
func ExampleOpenFrames() {
	r, err := trace.OpenFrames("../testdata/captures/0.33.0-multiturn-s7.jsonl.gz", trace.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer r.Close()
	count := map[string]int{}
	for {
		var m trace.Message
		if err := r.Next(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			log.Fatal(err)
		}
		count[m.Direction]++
	}
	fmt.Println(count[trace.FrontendToEngine], "from the frontend,", count[trace.EngineToFrontend], "from the engine")
	// Output:
	// 181 from the frontend, 767 from the engine
}

// Prompts that begin with the same tokens have the same first hashes.
func ExampleBlockHashes() {
	a := trace.BlockHashes([]uint32{1, 2, 3, 4, 5}, 2)
	b := trace.BlockHashes([]uint32{1, 2, 9, 9}, 2)
	fmt.Println(len(a), len(b), a[0] == b[0], a[1] == b[1])
	// Output: 2 2 true false
}
