package sources

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// TestMain has this program be the one that reads sources, if its environment says so.
func TestMain(m *testing.M) {
	switch text := os.Getenv("SOURCES_TEST"); {
	case text == "wait":
		_, _ = io.Copy(io.Discard, os.Stdin)
		fmt.Fprintln(os.Stderr, "waiting")
		select {}
	case text == "fail":
		fmt.Fprintln(os.Stderr, "no memory")
		os.Exit(3)
	case text == "request":
		var request Request
		if err := json.NewDecoder(os.Stdin).Decode(&request); err != nil {
			panic(err)
		}
		_ = json.NewEncoder(os.Stdout).Encode(Result{Warning: fmt.Sprint(request.Name, request.Wheel.URL, request.Index, request.Yanked)})
		os.Exit(0)
	case text != "":
		fmt.Println(text)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestRead(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	request := Request{Name: "a", Wheel: &pypi.File{URL: "b"}, Index: "c", Yanked: true}
	gap := Gap{Place: protocol.Place{Module: "m.py", At: 7}, What: "class X", Why: "it is gone"}
	for _, test := range []struct {
		name, program string
		want          Result
		wantErr       string
		stderr        string
	}{
		{name: "the request", program: "request", want: Result{Warning: "abctrue"}},
		{
			name: "a result", program: `{"Profile":{"line":"9.9"},"Gaps":[{"module":"m.py","at":7,"What":"class X","Why":"it is gone"}],"Downloaded":5}`,
			want: Result{Profile: &protocol.Profile{Line: "9.9"}, Gaps: []Gap{gap}, Downloaded: 5},
		},
		{
			name: "an error", program: `{"Error":"m.py:7: no","NotNamed":true,"Downloaded":5}`,
			want: Result{Error: "m.py:7: no", NotNamed: true, Downloaded: 5}, wantErr: "m.py:7: no",
		},
		{name: "a program that fails", program: "fail", wantErr: "vllm-vcr-python ended without a result: exit status 3", stderr: "no memory\n"},
		{name: "another program", program: "hello", wantErr: "vllm-vcr-python wrote no result: invalid character 'h' looking for beginning of value"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("SOURCES_TEST", test.program)
			var stderr strings.Builder
			got, err := Read(t.Context(), self, request, &stderr)
			require.NoDiff(t, cmp.Diff(test.want, got), "(-want +got)")
			if err != nil && err.Error() != test.wantErr || err == nil && test.wantErr != "" || stderr.String() != test.stderr {
				t.Errorf("error %v, stderr %q, want %q and %q", err, stderr.String(), test.wantErr, test.stderr)
			}
		})
	}
	t.Run("a program that does not end", func(t *testing.T) {
		t.Setenv("SOURCES_TEST", "wait")
		stopped := errors.New("stopped")
		ctx, cancel := context.WithCancelCause(t.Context())
		if _, err := Read(ctx, self, request, writerFunc(func() { cancel(stopped) })); !errors.Is(err, stopped) {
			t.Errorf("error %v, want %v", err, stopped)
		}
	})
	if _, err := Read(t.Context(), "none", request, io.Discard); err == nil {
		t.Error("a program that is not there has no error")
	}
}

// A writerFunc is called when something is written.
type writerFunc func()

func (f writerFunc) Write(p []byte) (int, error) { f(); return len(p), nil }
