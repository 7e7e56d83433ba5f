package conformance

import (
	"bytes"
	"compress/gzip"
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// webStore is a store whose goldens lie on a web server of ours, and the manifest that says so.
func webStore(t *testing.T, handler http.HandlerFunc) (*RegisteredStore, []Case) {
	t.Helper()
	server := httptest.NewTLSServer(handler)
	t.Cleanup(server.Close)
	matrix, mf := repository(t)
	moved := *mf
	moved.Goldens = nil
	for _, g := range mf.ForLine("0.33") {
		g.BucketPath = server.URL + "/" + g.BucketPath
		moved.Goldens = append(moved.Goldens, g)
	}
	cases, err := NewPlan(matrix, &moved, Selection{Lines: []string{"0.33"}, Assertions: []Assertion{Integrity, Provenance}})
	require.NoError(t, err)
	store := NewStore(StoreOptions{Cache: t.TempDir()})
	store.Bytes.HTTP = server.Client()
	store.Bytes.Backoff = func(int) time.Duration { return 0 }
	return store, cases
}

func serveGoldens(w http.ResponseWriter, r *http.Request) {
	http.ServeFile(w, r, filepath.Join(repoGoldens, filepath.FromSlash(r.URL.Path)))
}

// The goldens of a plan are under way together, while the first case waits for its own.
func TestRunnerFetchesAhead(t *testing.T) {
	const parallel = 4
	var arrived sync.WaitGroup
	arrived.Add(parallel)
	var mu sync.Mutex
	asked := map[string]int{}
	store, cases := webStore(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked[r.URL.Path]++
		first := len(asked) <= parallel
		mu.Unlock()
		if first {
			arrived.Done()
			arrived.Wait() // for ever, if one comes after the other
		}
		serveGoldens(w, r)
	})
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	runner := Runner{Store: store}
	report := runner.Run(ctx, cases)
	require.Equal(t, report.ExitCode, ExitOK, "exit code: %s", report.Reason)
	require.True(t, len(asked) >= parallel, "only %d goldens were asked for", len(asked))
	for path, n := range asked {
		require.Equal(t, n, 1, "%s was asked for times", path)
	}
}

// plainStore hides that a store can prefetch.
type plainStore struct{ Store }

// Whether goldens are got ahead is not to be seen in a report, good or bad.
func TestPrefetchChangesNoReport(t *testing.T) {
	tests := []struct {
		name    string
		handler http.HandlerFunc
		exit    int
	}{
		{name: "good", handler: serveGoldens},
		{name: "missing", handler: http.NotFound, exit: ExitInfra},
		{name: "overloaded", handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }, exit: ExitInfra},
		{name: "other bytes", handler: func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("x")) }, exit: ExitFail},
		{
			name: "one missing", exit: ExitInfra,
			handler: func(w http.ResponseWriter, r *http.Request) {
				if strings.Contains(r.URL.Path, "edge-s1") {
					http.NotFound(w, r)
					return
				}
				serveGoldens(w, r)
			},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			store, cases := webStore(t, test.handler)
			ahead := (&Runner{Store: store}).Run(t.Context(), cases)
			fresh := NewStore(StoreOptions{Cache: t.TempDir()})
			fresh.Bytes.HTTP, fresh.Bytes.Backoff = store.Bytes.HTTP, store.Bytes.Backoff
			alone := (&Runner{Store: plainStore{fresh}}).Run(t.Context(), cases)
			require.Equal(t, ahead.ExitCode, test.exit, "exit code: %s", ahead.Reason)
			same := cmp.Options{cmpopts.IgnoreFields(Result{}, "Duration"), cmpopts.IgnoreFields(Report{}, "Duration"), cmp.Exporter(func(reflect.Type) bool { return true })}
			require.NoDiff(t, cmp.Diff(alone, ahead, same), "-alone +ahead")
		})
	}
}

// A run that ends takes what it got ahead with it.
func TestPrefetchEndsWithTheRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	store, cases := webStore(t, func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	})
	report := (&Runner{Store: store}).Run(ctx, cases)
	require.Equal(t, report.ExitCode, ExitInfra, "exit code")
}

// A golden that inflates without end is the golden's fault, whatever it is a golden of.
func TestGoldenBomb(t *testing.T) {
	var bomb bytes.Buffer
	w := gzip.NewWriter(&bomb)
	w.Write(bytes.Repeat([]byte(" "), 20<<20))
	require.NoError(t, w.Close())
	says := []string{"", "bytes of the golden inflate to more than", "the limit is 64 times its size"}
	t.Run("trace", func(t *testing.T) {
		g := usualGolden(t)
		g.register(bomb.Bytes())
		says[0] = g.BucketPath + ": "
		report := (&Runner{Store: g}).Run(t.Context(), g.plan(t, Selection{}))
		judgedOnce(ExitFail, "line", Error, says...).check(t, report)
	})
	t.Run("wire", func(t *testing.T) {
		g := goldenOf(t, "0.33", "wire-edge-s1")
		g.register(bomb.Bytes())
		report := (&Runner{Store: g}).Run(t.Context(), g.plan(t, onlyWire))
		if r := report.Results[0]; report.ExitCode != ExitFail || r.Failures[0].Code != check.CodeGolden || !strings.Contains(saidBy(r), says[1]) {
			t.Errorf("exit code %d, %v", report.ExitCode, r.Failures)
		}
	})
	t.Run("registered", func(t *testing.T) {
		d := copyManifest(t)
		d.Trace = filepath.Join(t.TempDir(), "bomb.jsonl.gz")
		require.NoError(t, os.WriteFile(d.Trace, bomb.Bytes(), 0o600))
		_, err := Register(t.Context(), d.Registration)
		require.True(t, err != nil && strings.Contains(err.Error(), d.Trace) && strings.Contains(err.Error(), says[1]), "got %v", err)
	})
}
