package kvtransfer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
)

// SideChannel is a [DataPlane] between players in one process or several: it moves
// nothing, but a KV cache that was not computed, or that is kept no longer, does not
// come, and one that was pulled is let go at once. It speaks HTTP, and not what the
// agents of NIXL send messages to each other.
//
// The address of a KV cache comes with a request, so every client can name addresses that a player asks. What
// keeps that from being a way into its network: it asks peers alone, with one path; it follows no redirects; and nothing
// that a peer writes reaches the request's error.
type SideChannel struct {
	peers   []netip.Prefix
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
// engines that share the side channel. Port 0 is any that are free. It asks the peers, and answers them; nil are
// [DefaultPeers]. Close ends it.
func ListenSideChannel(host string, port, count int, peers []netip.Prefix) (*SideChannel, error) {
	s := &SideChannel{offers: map[offerKey]func(){}, peers: peers}
	if s.peers == nil {
		var err error
		if s.peers, err = DefaultPeers(); err != nil {
			return nil, fmt.Errorf("side channel: %w: add it to --kv-transfer-peers", err)
		}
	}
	dialer := &net.Dialer{Control: func(_, address string, _ syscall.RawConn) error { return s.check(address) }}
	s.http = http.Client{
		Timeout: askTimeout,
		Transport: &http.Transport{
			DialContext: dialer.DialContext, MaxIdleConns: 64, IdleConnTimeout: 3 * askTimeout, MaxResponseHeaderBytes: 16 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
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

// errNoPeer is the error of an address that is not one of a peer.
var errNoPeer = errors.New("it is not one of the peers of this engine: add it to --kv-transfer-peers")

// check refuses an address that is not a peer's. It is that of a connection, after names were looked up.
func (s *SideChannel) check(address string) error { return CheckPeer(s.peers, address) }

// CheckPeer refuses an address, HOST:PORT with an IP address, that is not one of the peers.
func CheckPeer(peers []netip.Prefix, address string) error {
	ip, err := netip.ParseAddrPort(address)
	if err != nil {
		return errNoPeer
	}
	for _, peer := range peers {
		if peer.Contains(ip.Addr().Unmap().WithZone("")) {
			return nil
		}
	}
	return errNoPeer
}

// sharedRanges are the ranges of addresses that machines of one owner use among themselves.
var sharedRanges = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("fc00::/7"),
}

// DefaultPeers are this machine by its loopback, and those of the private ranges that it has an address in.
func DefaultPeers() ([]netip.Prefix, error) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	peers := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
	for _, private := range sharedRanges {
		within := func(a net.Addr) bool {
			own, err := netip.ParsePrefix(a.String())
			return err == nil && private.Contains(own.Addr().Unmap())
		}
		if slices.ContainsFunc(addresses, within) {
			peers = append(peers, private)
		}
	}
	return peers, nil
}

// ParsePeers reads addresses and ranges of addresses, "10.1.2.3" and "10.1.0.0/16".
func ParsePeers(words []string) ([]netip.Prefix, error) {
	var peers []netip.Prefix
	for _, word := range words {
		peer, err := netip.ParsePrefix(word)
		if address, alone := netip.ParseAddr(word); err != nil && alone == nil && address.Zone() == "" {
			peer, err = netip.PrefixFrom(address, address.BitLen()), nil
		}
		if err != nil {
			return nil, fmt.Errorf("%q: want an address or a range, such as 10.1.2.3 or 10.1.0.0/16", word)
		}
		peers = append(peers, peer)
	}
	return peers, nil
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
func (s *SideChannel) Offer(cache Cache, events Events) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offers[offerKey{cache.EngineID, cache.RequestID}] = events.Taken
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

// Await does nothing: leases are those of the engine that keeps the KV cache.
func (s *SideChannel) Await(Cache) (stop func()) { return func() {} }

// Pull calls the engine that keeps the KV cache, which lets it go. It moves nothing, and counts as one descriptor.
func (s *SideChannel) Pull(ctx context.Context, cache Cache) (Moved, error) {
	return Moved{Descriptors: 1}, s.pull(ctx, cache)
}

func (s *SideChannel) pull(ctx context.Context, cache Cache) error {
	body, err := json.Marshal(offerKey{cache.EngineID, cache.RequestID})
	if err != nil {
		return err
	}
	if !hostName().MatchString(cache.Host) {
		return fmt.Errorf("engine %q: remote_host %q is neither a name nor an address", cache.EngineID, cache.Host)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+cache.Address()+"/kv/pull", bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := s.http.Do(r)
	if err != nil {
		return fmt.Errorf("engine %q at %s: %w", cache.EngineID, cache.Address(), unanswered(err))
	}
	answer.Body.Close()
	switch answer.StatusCode {
	case http.StatusOK:
		return nil
	case http.StatusNotFound:
		return fmt.Errorf("engine %q at %s keeps no KV cache of request %q (404)", cache.EngineID, cache.Address(), cache.RequestID)
	}
	return fmt.Errorf("engine %q at %s: it answers with status %d", cache.EngineID, cache.Address(), answer.StatusCode)
}

// hostName is a name or an address, and nothing that would end the host of a URL.
var hostName = lazyregexp.New(`^([A-Za-z0-9_]([A-Za-z0-9._-]*)|[0-9A-Fa-f.:]+)$`)

// unanswered is why a peer did not answer, without what it wrote: an error of package http quotes an answer that is not HTTP.
func unanswered(err error) error {
	var dialed *net.OpError
	switch {
	case errors.Is(err, errNoPeer):
		return errNoPeer
	case errors.As(err, &dialed) && dialed.Op == "dial":
		return fmt.Errorf("%w: %w", ErrHandshake, dialed)
	case errors.Is(err, context.Canceled):
		return context.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no answer within %v", askTimeout)
	}
	return errors.New("it does not answer as a player")
}

// Release lets it go without pulling.
func (s *SideChannel) Release(ctx context.Context, cache Cache) error { return s.pull(ctx, cache) }

// ServeHTTP answers calls for a KV cache.
func (s *SideChannel) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.check(r.RemoteAddr) != nil {
		http.Error(w, "you are not among the peers of this engine: its --kv-transfer-peers says who they are", http.StatusForbidden)
		return
	}
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
