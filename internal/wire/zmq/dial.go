package zmq

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"
)

const (
	firstBackoff = 5 * time.Millisecond
	maxBackoff   = 250 * time.Millisecond
)

// Dial connects to endpoint and shakes hands. It tries again, with growing
// pauses of at most 250 ms, until ctx ends: the peer may not listen yet, the
// socket of an ipc endpoint may not exist yet. A peer whose socket type does not
// pair with typ is not tried again, nor is anything when this process can open no more
// files. The error names endpoint and the last cause.
//
// A PUSH connection needs no reader: it watches for the peer's departure itself,
// and Recv on it waits for that. A SUB connection receives nothing until it has called
// [Conn.Subscribe].
func Dial(ctx context.Context, endpoint string, typ Type, opt Options) (*Conn, error) {
	return connect(ctx, endpoint, typ, opt, dialTypes, func(c *Conn) {
		if typ == Push {
			c.bg.Go(c.watch)
		}
	})
}

// DialAs connects to endpoint as another peer would: with its socket type and its
// identity, so that the listener there sees no difference. Like
// [Dial] it tries again until ctx ends. It is the other half of a [Relay] whose
// first half a [Gate] accepted.
func DialAs(ctx context.Context, endpoint string, peer Peer, opt Options) (*Conn, error) {
	opt.Identity = peer.Identity
	return connect(ctx, endpoint, peer.Type, opt, relayTypes, func(*Conn) {})
}

// relayTypes are the types DialAs can be.
var relayTypes = []Type{Dealer, Push, Sub, XSub}

// connect is Dial and DialAs; begin sets off what a new connection does by itself.
func connect(ctx context.Context, endpoint string, typ Type, opt Options, types []Type, begin func(*Conn)) (*Conn, error) {
	addr, opt, err := prepare(endpoint, typ, opt, types)
	if err != nil {
		return nil, fmt.Errorf("dial %w", err)
	}
	var last error
	for pause := firstBackoff; ; pause = min(2*pause, maxBackoff) {
		conn, err := dialOnce(ctx, addr, typ, opt, begin)
		if err == nil {
			return conn, nil
		}
		// An attempt that ctx cut short says less than the one before it.
		if last == nil || !over(ctx) {
			last = err
		}
		if errors.Is(err, ErrIncompatible) {
			return nil, fmt.Errorf("connect to %s as %s: %w", endpoint, typ, err)
		}
		if OutOfFiles(err) {
			return nil, fmt.Errorf("connect to %s as %s: %w: allow this process more open files (ulimit -n)", endpoint, typ, err)
		}
		if !wait(ctx, pause) {
			return nil, fmt.Errorf("connect to %s as %s: %w; last attempt: %w", endpoint, typ, context.Cause(ctx), last)
		}
	}
}

// prepare checks what Dial and Listen are given.
func prepare(endpoint string, typ Type, opt Options, types []Type) (address, Options, error) {
	if !slices.Contains(types, typ) {
		return address{}, opt, fmt.Errorf("%s: socket type %q, want one of %v", endpoint, string(typ), types)
	}
	opt, err := opt.withDefaults()
	if err != nil {
		return address{}, opt, fmt.Errorf("%s: %w", endpoint, err)
	}
	addr, err := parseEndpoint(endpoint)
	return addr, opt, err
}

func dialOnce(ctx context.Context, addr address, typ Type, opt Options, begin func(*Conn)) (*Conn, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, addr.network, addr.addr)
	if err != nil {
		return nil, err
	}
	c := newConn(nc, typ, opt, addr.addr)
	stop := hangUp(ctx, nc)
	if err = c.handshake(nil); err == nil && !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		stop()
		nc.Close()
		return nil, err
	}
	begin(c)
	return c, nil
}

// hangUp closes nc when ctx ends. The returned function calls that off and
// reports whether it was in time.
func hangUp(ctx context.Context, nc net.Conn) (stop func() bool) {
	return context.AfterFunc(ctx, func() { nc.Close() })
}

// watch receives from a peer that has nothing to say but PING and good-bye.
func (c *Conn) watch() {
	_, _ = c.recv()
}

// over reports whether ctx has ended, or is about to: a connect ends at its
// deadline a little before ctx itself does.
func over(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(deadline)
}

// wait sleeps for d and reports false when ctx ended first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
