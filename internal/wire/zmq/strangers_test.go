//go:build unix

package zmq

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

const strangersMost = 64 << 10

// A stranger is told no by the header of its frame, before any of the body is read; a peer that is trusted is not.
func TestStrangersSendLittle(t *testing.T) {
	for _, d := range doors[:2] {
		for _, test := range []struct {
			name    string
			trusted bool
			size    int
			refused bool
		}{
			{"a stranger at the bound", false, strangersMost, false},
			{"a stranger above it", false, strangersMost + 1, true},
			{"a peer", true, strangersMost + 1, false},
		} {
			t.Run(d.name+"/"+test.name, func(t *testing.T) {
				o := d.open(t, tcp, Options{MaxStranger: strangersMost})
				r := rawDial(t, o.endpoint)
				r.greet("Socket-Type", "DEALER", "Identity", "s")
				c, receive := o.joined()
				if test.trusted {
					c.Trust()
				}
				body := strings.Repeat("x", test.size)
				if test.refused {
					body = "" // the claim is enough
				}
				r.send(long(0, uint64(test.size), body))
				if _, err := receive(); errors.Is(err, ErrTooLarge) != test.refused {
					t.Errorf("received with error %v, want refused: %v", err, test.refused)
				}
			})
		}
	}
}

// The oldest stranger makes way, whatever it waits for; who is trusted does not.
func TestStrangersMakeWay(t *testing.T) {
	for _, test := range []struct {
		name  string
		stage func(*raw)
	}{
		{"silent", func(*raw) {}},
		{"in the middle of the greeting", func(r *raw) { r.send(greeting[:20]) }},
		{"greeted and not accepted", func(r *raw) { r.greet("Socket-Type", "DEALER") }},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := doors[1].open(t, tcp, Options{MaxStranger: strangersMost, MaxStrangers: 2, HandshakeTimeout: patience})
			known := rawDial(t, o.endpoint)
			known.greet("Socket-Type", "DEALER")
			c, _ := o.joined()
			c.Trust()
			strangers := []*raw{rawDial(t, o.endpoint)}
			test.stage(strangers[0])
			for range 2 { // each is in before the next comes
				r := rawDial(t, o.endpoint)
				r.greet("Socket-Type", "DEALER")
				strangers = append(strangers, r)
			}
			require.ErrorIs(t, o.refused(), ErrCrowded)
			strangers[0].ends()
			known.send(short(0, "still here"))
			receives(t, c, "still here")
		})
	}
}

// A connection that has made way before its handshake begins says so too, and not that it is closed.
func TestMadeWayBeforeTheHandshake(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	c := newConn(ours, Router, Options{HandshakeTimeout: patience}, "a stranger")
	close(c.crowded)
	require.NoError(t, ours.Close())
	require.ErrorIs(t, c.handshake(nil), ErrCrowded)
}

// A listener whose events nobody takes keeps nothing of those it refuses, or that make way.
func TestNobodyWaitsForAReceiver(t *testing.T) {
	for _, test := range []struct {
		name string
		do   func(*raw)
	}{
		{"refused", func(r *raw) { r.send("GET / HTTP/1.1\r\n\r\n") }},
		{"made way", func(r *raw) { r.greet("Socket-Type", "PUSH"); r.send(short(0, "x")) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			l, err := Listen(tcp, Pull, Options{MaxStranger: strangersMost, MaxStrangers: 4})
			require.NoError(t, err)
			defer l.Close()
			before := runtime.NumGoroutine()
			for range inboxEvents + 100 {
				r := rawDial(t, l.Endpoint())
				test.do(r)
				if test.name == "refused" {
					_, _ = io.Copy(io.Discard, r)
				}
				defer r.Close()
			}
			deadline := time.Now().Add(patience)
			for runtime.NumGoroutine() > before+20 {
				if time.Now().After(deadline) {
					t.Fatalf("%d goroutines wait for a receiver", runtime.NumGoroutine()-before)
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
}

// Who can open no more sockets is told so at once, and not that the time is up.
func TestDialWithoutFiles(t *testing.T) {
	l, err := Listen(tcp, Router, Options{})
	require.NoError(t, err)
	defer l.Close()
	var limit syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	few := limit
	few.Cur = 3
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few))
	_, err = Dial(patient(t), l.Endpoint(), Dealer, Options{})
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit))
	require.True(t, OutOfFiles(err) && strings.Contains(fmt.Sprint(err), "ulimit -n"), "error %v, want that there are no more files and what to do", err)
}

// A flood of refusals is a handful of lines that add up, and one that is over is no more than two.
func TestRefusalLog(t *testing.T) {
	for _, test := range []struct {
		name    string
		refused int
		every   time.Duration
		lines   int
	}{
		{"one", 1, 0, 1},
		{"a burst", 20_000, 0, 2},
		{"an hour of them", 36_000, 100 * time.Millisecond, 18},
		{"far apart", 5, time.Hour, 5},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				log := NewRefusalLog(slog.New(slog.NewTextHandler(&out, nil)), "refused")
				for range test.refused {
					log.Add(errors.New("bad"))
					time.Sleep(test.every)
				}
				log.Close()
				text, sum := out.String(), 0
				for line := range strings.Lines(text) {
					others := 0
					if _, rest, found := strings.Cut(line, "others="); found {
						_, err := fmt.Sscan(rest, &others)
						require.NoError(t, err)
						sum += others
						continue
					}
					sum++
				}
				if got := strings.Count(text, "\n"); got != test.lines || sum != test.refused {
					t.Errorf("%d lines of %d refusals, want %d of %d:\n%s", got, sum, test.lines, test.refused, text)
				}
			})
		})
	}
}
