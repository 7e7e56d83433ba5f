package pack_test

import (
	"fmt"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

func ExampleDiff() {
	message := func(cached uint64) []byte {
		b := pack.AppendString(pack.AppendArrayHeader(nil, 2), "req-1")
		b = pack.AppendString(pack.AppendMapHeader(b, 1), "num_cached_tokens")
		return pack.AppendUint(b, cached)
	}
	names := func(_ string, i int) string { return []string{"request_id", "prefill_stats"}[i] }
	found, err := pack.Diff("EngineCoreOutput", message(6), message(700), pack.DiffOptions{Names: names})
	fmt.Println(found, err)
	// Output: [EngineCoreOutput.prefill_stats.num_cached_tokens: want 6, got 700] <nil>
}

func ExampleFormat() {
	b := pack.AppendArrayHeader(nil, 3)
	b = pack.AppendString(b, "req-1")
	b = pack.AppendUint32s(b, []uint32{42, 151_643})
	b = pack.AppendExt(b, 3, make([]byte, 256))
	fmt.Println(pack.Format(b))
	// Output: ["req-1", [42, 151643], ext(3, 256 bytes)]
}
