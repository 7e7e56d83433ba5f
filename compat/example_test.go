package compat_test

import (
	"fmt"

	"github.com/vllm-vcr/conformance/compat"
)

func ExampleParse() {
	const file = `
[[vllm]]
line = "0.33"
tag = "v0.33.0"
protocol_rev = "4ba787ec9"
defualt = true
`
	_, diagnostics := compat.Parse("compat.toml", []byte(file))
	for _, f := range diagnostics {
		fmt.Println(f)
	}
	// Output:
	// compat.toml:3: C004 error: exactly one line must be the default, none is; add default = true to the newest stable line
	// compat.toml:6: C008 error: unknown key "defualt" in [[vllm]]; did you mean "default"? keys of your own start with x_
}
