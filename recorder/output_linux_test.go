package recorder

import (
	"errors"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

// TestDevFull: the kernel's own full device.
func TestDevFull(t *testing.T) {
	f, err := Create(Destination{Path: "/dev/full"})
	require.NoError(t, err)
	s := obsUnregistered(t, Options{}, "0.33")
	s.o = NewObserver(Options{}, Sinks{Trace: f}, &s.counts, s.o.log)
	s.register("0.33.0")
	s.add(obsRequest("a", 4))
	s.out(1, obsEnd("a", protocol.FinishStop, 1))
	require.ErrorIs(t, s.o.Err(), syscall.ENOSPC, "the 0 records before it are safe")
	require.ErrorIs(t, s.o.Close(), syscall.ENOSPC)
}

// TestRealFullDisk fills a file system of 64 KiB, where it may be mounted.
func TestRealFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("no file system of its own to fill: mount: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	s := obsUnregistered(t, Options{}, "0.33")
	f := obsCreate(t, filepath.Join(dir, "run.jsonl"))
	s.o = NewObserver(Options{}, Sinks{Trace: f}, &s.counts, s.o.log)
	s.register("0.33.0")
	for range 2000 {
		s.add(obsRequest("a", 4))
		s.out(1, obsEnd("a", protocol.FinishStop, 1))
	}
	if err := s.o.Close(); !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), f.Name()) {
		t.Fatalf("Close %v", err)
	}
	got, err := trace.Read(f.Name(), trace.Options{})
	n := s.counts.Records.Load()
	if err != nil || n == 0 || n == 2000 || uint64(len(got.Records)) != n {
		t.Errorf("%d records counted, %v", n, err)
	}
}
