package s3store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/golden"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// What these tests share with those of package golden.
var (
	content, patience, newScript          = testenv.Content, testenv.Patience, testenv.NewScript
	serve, status, cut, drop, hang, reset = testenv.Serve, testenv.Status, testenv.Cut, testenv.Drop, testenv.Hang, testenv.Reset
	withoutAWS, setenv                    = testenv.WithoutAWS, testenv.Setenv
	write, contentFile                    = testenv.WriteFile, testenv.ContentFile
	wantFetchError, wantPublishError      = testenv.WantError[*golden.FetchError], testenv.WantError[*golden.PublishError]
)

type step = testenv.Step

// A goldenStore is a store of goldens whose S3 is as its options say when it is first used.
type goldenStore struct {
	golden.Store
	S3          Options
	roleTimeout time.Duration
	once        sync.Once
	connected   *store
}

// Connect implements [golden.Connector].
func (s *goldenStore) Connect(t golden.Transport) golden.ObjectStore {
	s.once.Do(func() {
		s.connected = &store{opt: s.S3, Transport: t, roleTimeout: s.roleTimeout}
	})
	return s.connected
}

// s3 is what reads and writes objects, past the store of goldens.
func (s *goldenStore) s3(ctx context.Context) (*client, error) {
	s.Connect(golden.Transport{HTTP: s.HTTP, Backoff: s.Backoff, Stall: s.Stall, Log: s.Log})
	return s.connected.connect(ctx)
}

// newStore returns a store with a cache of its own that retries at once.
func newStore(t testing.TB) *goldenStore {
	t.Helper()
	s := &goldenStore{}
	s.Log = slog.New(slog.DiscardHandler)
	s.Cache, s.Backoff, s.Store.S3 = t.TempDir(), func(int) time.Duration { return 0 }, s
	return s
}

// fetchContent fetches content, or something else, under the digest of content.
func fetchContent(t *testing.T, s *goldenStore, location string) ([]byte, error) {
	t.Helper()
	return s.Fetch(t.Context(), contentAt(location))
}

// contentAt is content as it is registered at a location, and at mirrors.
func contentAt(location string, mirrors ...string) golden.Object {
	return golden.Object{Location: location, Mirrors: mirrors, SHA256: digest(content), Size: int64(len(content))}
}

func wantContent(t *testing.T, s *goldenStore, location string) {
	t.Helper()
	got, err := fetchContent(t, s, location)
	require.NoError(t, err)
	if !bytes.Equal(got, content) {
		t.Fatalf("got %d bytes, want %d, or others", len(got), len(content))
	}
}

// logTo makes the store log into the returned buffer, which is to be read once the store is idle.
func logTo(s *goldenStore) *bytes.Buffer {
	log, out := testenv.Log()
	s.Log = log
	return out
}

func wantPublished(t *testing.T, s *goldenStore, location, file string, existed bool) {
	t.Helper()
	got, err := s.Publish(t.Context(), location, file)
	require.NoError(t, err)
	want := golden.Published{Location: location, SHA256: digest(content), Size: int64(len(content)), Existed: existed}
	require.NoDiff(t, cmp.Diff(want, got), "-want +got")
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
