package recorder_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"os"
	"os/signal"

	"github.com/vllm-vcr/conformance/recorder"
	"github.com/vllm-vcr/conformance/trace"
)

// Record what passes between a frontend that listens on port 5550 and the engine that dials port 5551, until the process is
// interrupted or one of the two hangs up.
func ExampleRun() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	summary, err := recorder.Run(ctx, recorder.Config{
		Frontend: "tcp://127.0.0.1:5550",
		Listen:   "tcp://127.0.0.1:5551",
		Observe:  recorder.Options{RecordTokens: true, RecordPrompts: true, Model: "Qwen/Qwen3-0.6B"},
		Trace:    recorder.Destination{Path: "run.jsonl.gz"},
		Log:      slog.Default(),
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, engine := range summary.Ranks {
		fmt.Println(engine.Rank, engine.Files)
	}
	t, err := trace.Read("run.jsonl.gz", trace.Options{Strict: true})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(t.Records), "requests")
}

// Outputs are checked before anything connects.
func ExampleRun_existingFile() {
	_, err := recorder.Run(context.Background(), recorder.Config{
		Frontend: "tcp://127.0.0.1:5550",
		Listen:   "tcp://127.0.0.1:5551",
		Trace:    recorder.Destination{Path: "doc.go"},
	})
	fmt.Println(err)
	// Output:
	// output doc.go exists already; move it away, or allow overwriting
}
