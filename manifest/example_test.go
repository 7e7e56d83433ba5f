package manifest_test

import (
	"fmt"

	"github.com/vllm-vcr/conformance/manifest"
)

func ExampleParse() {
	const file = `
[[golden]]
line = "0.33"
bucket_path = "conformance/v0.33.0/cpu/tiny/ready.jsonl.gz"
sha256 = "TODO"
config_hash = "38d9474a790dfce6e1cb349c6ffe6076f82666c5c3cf09413a8489b55521155f"
workload = "ready"
role = "schema"
`
	m, diagnostics := manifest.Parse("manifest.toml", []byte(file))
	for _, f := range diagnostics {
		fmt.Println(f)
	}
	fmt.Println(m.Goldens[0].Location("s3://goldens", ""))
	// Output:
	// manifest.toml:5: M005 error: sha256 "TODO" is not 64 lowercase hexadecimal digits; sha256sum prints it for the stored file
	// s3://goldens/conformance/v0.33.0/cpu/tiny/ready.jsonl.gz
}
