package kvtransfer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// SideChannel is a [DataPlane] between players in one process or several: it moves
// nothing, but a KV cache that nobody has computed, or that is kept no longer, does not
// come, and one that was pulled is let go at once. It speaks HTTP, and not what the
// agents of NIXL speak with each other.
type SideChannel struct {
	servers []*http.Server
	ports   []int
	serving sync.WaitGroup
	http    http.Client

	mu     sync.Mutex
	offers map[offerKey]func()
}

type offerKey struct {
	EngineID  string `json:"engine_id"`
	RequestID string `json:"request_id"`
}

// askTimeout bounds how long another engine may take to answer.
const askTimeout = 10 * time.Second

// ListenSideChannel listens on count ports from the given one on: one for each of the
// engines that share the side channel. Port 0 is any that are free. Close ends it.
func ListenSideChannel(host string, port, count int) (*SideChannel, error) {
	s := &SideChannel{offers: map[offerKey]func(){}, http: http.Client{Timeout: askTimeout, Transport: &http.Transport{}}}
	next := 0
	for i := range count {
		if port > 0 {
			next = port + i
		}
		l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(next)))
		if err != nil {
			s.Close()
			return nil, fmt.Errorf("side channel: %w: VLLM_NIXL_SIDE_CHANNEL_HOST and _PORT say where it is", err)
		}
		server := &http.Server{Handler: s, ReadHeaderTimeout: askTimeout}
		s.servers = append(s.servers, server)
		s.ports = append(s.ports, l.Addr().(*net.TCPAddr).Port)
		s.serving.Go(func() { _ = server.Serve(l) }) // which ends by Close
	}
	return s, nil
}

// Port is that of the i-th engine.
func (s *SideChannel) Port(i int) int { return s.ports[i] }

// Close ends all offers, and answers no more requests.
func (s *SideChannel) Close() {
	for _, server := range s.servers {
		server.Close()
	}
	s.serving.Wait()
	s.http.CloseIdleConnections()
}

// Offer makes a KV cache known.
func (s *SideChannel) Offer(cache Cache, taken func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offers[offerKey{cache.EngineID, cache.RequestID}] = taken
}

// Withdraw makes it unknown.
func (s *SideChannel) Withdraw(cache Cache) { s.take(offerKey{cache.EngineID, cache.RequestID}) }

func (s *SideChannel) take(key offerKey) (taken func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken = s.offers[key]
	delete(s.offers, key)
	return taken
}

// Pull asks where the KV cache is kept, which lets it go.
func (s *SideChannel) Pull(ctx context.Context, cache Cache) error {
	body, err := json.Marshal(offerKey{cache.EngineID, cache.RequestID})
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+cache.Address()+"/kv/pull", bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := s.http.Do(r)
	if err != nil {
		return fmt.Errorf("engine %q: %w", cache.EngineID, err)
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusOK {
		return nil
	}
	said, _ := io.ReadAll(io.LimitReader(answer.Body, 500))
	return fmt.Errorf("engine %q at %s: %s: %q", cache.EngineID, cache.Address(), answer.Status, bytes.TrimSpace(said))
}

// Release lets it go without pulling.
func (s *SideChannel) Release(ctx context.Context, cache Cache) error { return s.Pull(ctx, cache) }

// ServeHTTP answers who asks for a KV cache.
func (s *SideChannel) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var key offerKey
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&key)
	switch {
	case r.Method != http.MethodPost || r.URL.Path != "/kv/pull":
		http.Error(w, "ask with POST /kv/pull", http.StatusNotFound)
	case err != nil:
		http.Error(w, errors.Join(errors.New("want engine_id and request_id"), err).Error(), http.StatusBadRequest)
	default:
		taken := s.take(key)
		if taken == nil {
			http.Error(w, fmt.Sprintf("no KV cache of request %q is kept for engine %q", key.RequestID, key.EngineID), http.StatusNotFound)
			return
		}
		taken()
	}
}
