package plural_test

import (
	"fmt"

	"github.com/vllm-vcr/conformance/internal/base/plural"
)

func ExampleCount() {
	fmt.Println(plural.Count(0, "case"), plural.Count(1, "case"), plural.Count(2, "case"))
	// Output: 0 cases 1 case 2 cases
}
