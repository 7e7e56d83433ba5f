package s3store

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"github.com/vllm-vcr/conformance/internal/golden"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// envLargeObject asks for an object of so many bytes, such as 5368709120, instead of one that takes a second.
const envLargeObject = "VLLM_VCR_LARGE_OBJECT"

func largeObject(t *testing.T) (size int64) {
	t.Helper()
	size, err := strconv.ParseInt(cmp.Or(os.Getenv(envLargeObject), "300000000"), 10, 64)
	require.NoErrorf(t, err, "%s", envLargeObject)
	return size
}

// Whatever the size of an object, its bytes are never in memory as a whole.
func TestLargeObjectInConstantMemory(t *testing.T) {
	size := largeObject(t)
	server, _ := startS3(t)
	name := filepath.Join(server.Dir, bucket, "large")
	write(t, name, nil)
	if err := os.Truncate(name, size); err != nil { // a hole takes no room
		t.Fatal(err)
	}
	f, err := os.Open(name)
	require.NoError(t, err)
	defer f.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, f); err != nil {
		t.Fatal(err)
	}
	sum := hex.EncodeToString(hash.Sum(nil))
	s := newStore(t)
	s.MaxSize = size
	o := golden.Object{Location: "s3://" + bucket + "/large", SHA256: sum, Size: size}
	s.Pull(t.Context(), []golden.Object{{Location: "s3://" + bucket + "/none", SHA256: digest(nil)}}) // finding credentials takes memory too

	const most = 64 << 20 // all that is ever allocated, also what is free again
	for _, cached := range []bool{false, true} {
		wantLittleMemory(t, "Pull", most, func() {
			if p := s.Pull(t.Context(), []golden.Object{o})[0]; p.Err != nil || p.Bytes != size || p.Cached != cached {
				t.Errorf("got %+v", p)
			}
		})
	}
}

// wantLittleMemory fails if what work does allocates more than so many bytes in all.
func wantLittleMemory(t *testing.T, what string, most uint64, work func()) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	work()
	runtime.ReadMemStats(&after)
	took := after.TotalAlloc - before.TotalAlloc
	t.Logf("%s allocated %d bytes; the process has %d from the system", what, took, after.Sys)
	require.True(t, took <= most, "%s allocated %d bytes, want %d at most", what, took, most)
}
