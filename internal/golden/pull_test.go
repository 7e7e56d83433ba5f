package golden

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestPull(t *testing.T) {
	server := newScript(t, true, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/missing" {
			http.NotFound(w, r)
			return
		}
		w.Write(content)
	})
	s := newStore(t)
	s.HTTP = server.Client()
	wrong := Object{Location: server.URL + "/wrong", SHA256: digest([]byte("other"))}
	missing := Object{Location: server.URL + "/missing", SHA256: digest([]byte("missing"))}
	objects := []Object{missing, contentAt(server.URL), wrong, contentAt(server.URL + "/again")}
	size := int64(len(content))
	want := []Pulled{
		{Object: missing, Err: cmpopts.AnyError},
		{Object: objects[1], From: server.URL, Bytes: size},
		{Object: wrong, Err: cmpopts.AnyError},
		{Object: objects[3], From: server.URL + "/again", Bytes: size, Cached: true},
	}
	got := s.Pull(t.Context(), objects)
	if got[1].Cached { // of two that are the same either may be the first
		want[1].Cached, want[3].Cached = true, false
	}
	require.NoDiff(t, cmp.Diff(want, got, cmpopts.EquateErrors()), "-want +got")
	wantFetchError(t, got[0].Err, "404")
	wantMismatch(t, got[2].Err)
	require.Equal(t, server.Asked(), 3, "requests: the same bytes once")
	require.True(t, s.Pull(t.Context(), nil) != nil, "nothing to pull is not nothing")
}

// So many downloads run at a time, and no more.
func TestPullInParallel(t *testing.T) {
	var running atomic.Int32
	full := make(chan struct{})
	reached := sync.OnceFunc(func() { close(full) })
	server := newScript(t, true, func(w http.ResponseWriter, r *http.Request) {
		if now := running.Add(1); now > parallel {
			t.Errorf("%d downloads at a time, want %d", now, parallel)
		} else if now == parallel {
			reached()
		}
		<-full // the first ones wait for the last of them
		running.Add(-1)
		w.Write([]byte(r.URL.Path))
	})
	s := newStore(t)
	s.HTTP = server.Client()
	var objects []Object
	for i := range 3 * parallel {
		path := "/" + strings.Repeat("a", i+1)
		objects = append(objects, Object{Location: server.URL + path, SHA256: digest([]byte(path))})
	}
	for _, p := range s.Pull(t.Context(), objects) {
		if p.Err != nil {
			t.Error(p.Err)
		}
	}
}

func TestPullCancelled(t *testing.T) {
	asked := make(chan struct{}, 10)
	server := newScript(t, true, func(w http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
	})
	s := newStore(t)
	s.HTTP = server.Client()
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		for range parallel {
			<-asked
		}
		cancel(errors.New("enough"))
	}()
	objects := make([]Object, parallel+3)
	for i := range objects {
		objects[i] = Object{Location: server.URL, SHA256: digest([]byte{byte(i)})}
	}
	for _, p := range s.Pull(ctx, objects) {
		wantFetchError(t, p.Err, "enough")
	}
	if got := server.Asked(); got != parallel {
		t.Errorf("%d requests, want %d", got, parallel)
	}
	wantNoEntries(t, s)
}
