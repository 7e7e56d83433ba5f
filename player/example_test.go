package player_test

import (
	"fmt"

	"github.com/vllm-vcr/conformance/player"
)

func ExampleReplayIndex() {
	// The client asked with X-Request-Id: replay-7, a Python frontend wrapped it.
	fmt.Println(player.ReplayIndex("cmpl-replay-7-0-1a2b3c4d", "cmpl-replay-7-0"))
	fmt.Println(player.ReplayIndex("cmpl-9f3e21aa", ""))
	// Output:
	// 7 true
	// 0 false
}
