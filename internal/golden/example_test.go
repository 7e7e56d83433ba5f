package golden_test

import (
	"context"
	"fmt"
	"os"

	"github.com/vllm-vcr/conformance/internal/golden"
	"github.com/vllm-vcr/conformance/manifest"
)

func Example() {
	registry, _ := manifest.Load("../../conformance/manifest.toml")
	store := &golden.Store{Bucket: "", FS: os.DirFS("../../testdata/goldens")}
	for _, g := range registry.Goldens[:1] {
		data, err := store.Fetch(context.Background(), golden.Object{Location: g.Location(store.Bucket, ""), SHA256: g.SHA256, Size: g.Size})
		fmt.Println(int64(len(data)) == g.Size, err)
	}
	// Output: true <nil>
}
