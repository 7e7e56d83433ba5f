package testenv

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestS3ServerThatDies(t *testing.T) {
	dir := t.TempDir()
	path := install(t, dir, "bin/versitygw", 0o755)
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\necho no disk; exit 3\n"), 0o755))
	t.Setenv(envPeers, dir)
	fake := newFakeTB(t)
	fake.run(func(tb testing.TB) { S3(tb) })
	for _, want := range []string{"the process ended", "3"} {
		if !strings.Contains(fake.fatal, want) {
			t.Errorf("fatal %q lacks %q", fake.fatal, want)
		}
	}
}

func TestRealS3ServerWantsASignature(t *testing.T) {
	server := S3(t)
	require.NoError(t, os.Mkdir(filepath.Join(server.Dir, "bucket"), 0o755))
	install(t, server.Dir, "bucket/key", 0o644)
	response, err := http.Get(server.Env()["AWS_ENDPOINT_URL_S3"] + "/bucket/key")
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusForbidden || !strings.Contains(string(body), "<Code>AccessDenied</Code>") {
		t.Errorf("got status %d, %v and %s; want 403 AccessDenied", response.StatusCode, err, body)
	}
	server.Stop()
	if err := server.Err(); err != nil {
		t.Errorf("SIGTERM ended it with %v", err)
	}
}
