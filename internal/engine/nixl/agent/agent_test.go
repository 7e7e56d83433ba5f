package agent_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/engine/nixl/agent"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

const block = 128 << 10

// TestRead: two helpers, each with a region. What one reads of the other lands in the right blocks, and the other is told. A
// helper that dies is started again, with the contents of its region and with its peers.
func TestRead(t *testing.T) {
	t.Setenv("UCX_TLS", "tcp,self,sm")
	prefill, decode := start(t, 16), start(t, 16)
	peer := connect(t, decode, prefill)
	hashes := []uint64{1 << 60, 7, 11}
	base := fill(t, prefill, map[int]uint64{2: hashes[0], 5: hashes[1], 9: hashes[2]})
	blocks := []agent.Block{
		{Remote: base + 2*block, Local: 0, Len: block},
		{Remote: base + 5*block, Local: block, Len: block},
		{Remote: base + 9*block, Local: 2 * block, Len: block},
	}
	read := func(want int) {
		t.Helper()
		require.NoError(t, decode.Read(t.Context(), peer, blocks, "cmpl-1:1"))
		if got := <-prefill.Notifications(); got.Text != "cmpl-1:1" {
			t.Errorf("the peer got the notification %q", got.Text)
		}
		if wrong := agent.WrongBlocks(local(t, decode, 3), hashes); wrong != want {
			t.Errorf("%d wrong blocks, want %d", wrong, want)
		}
	}
	read(0)

	_, err := prefill.WriteAt([]byte{1}, 5*block+77)
	require.NoError(t, err)
	read(1)

	before := string(decode.Metadata())
	agent.Kill(decode)
	fill(t, prefill, map[int]uint64{5: hashes[1]})
	require.True(t, string(decode.Metadata()) != before, "the helper that was started again has the metadata of the one before")
	read(0)

	blocks[0].Local = 16 * block
	require.ErrorContains(t, decode.Read(t.Context(), peer, blocks, ""), "block 0: 131072 bytes at offset 2097152 do not fit into the region of 2097152 bytes")
	blocks[0].Local = 0
	blocks[0].Remote = base + 16*block
	require.ErrorContains(t, decode.Read(t.Context(), peer, blocks, ""), "the peer has no such memory")
	require.ErrorContains(t, decode.Notify(t.Context(), "nobody", "x"), `the peer "nobody" is not connected`)

	blocks[0].Remote = base
	require.NoError(t, prefill.Close())
	require.ErrorContains(t, decode.Read(t.Context(), peer, blocks, "x"), "read 3 blocks of ")
}

// TestDeathInTheMiddle: a decode that dies in the middle of a read harms no other, and a read of a prefill that dies in its middle fails.
func TestDeathInTheMiddle(t *testing.T) {
	t.Setenv("UCX_TLS", "tcp,self")
	prefill, decode := start(t, 16), start(t, 16)
	peer, hashes := connect(t, decode, prefill), map[int]uint64{}
	var blocks []agent.Block
	for i := range 16 {
		hashes[i] = uint64(i)
	}
	base := fill(t, prefill, hashes)
	for i := range uint64(16) {
		blocks = append(blocks, agent.Block{Remote: base + i*block, Local: int64(i * block), Len: block})
	}
	dying := start(t, 16)
	require.NoError(t, dying.DieReading(t.Context(), connect(t, dying, prefill), blocks))
	require.NoError(t, decode.Read(t.Context(), peer, blocks[:1], ""))
	require.NoError(t, prefill.Misbehave(t.Context(), 0, true))
	require.ErrorContains(t, decode.Read(t.Context(), peer, blocks[1:], ""), "read 15 blocks of ")
	require.ErrorContains(t, decode.Read(t.Context(), peer, blocks[1:], ""), "read 15 blocks of ")
}

// TestCauses: why there is no agent is in the error.
func TestCauses(t *testing.T) {
	python := testenv.NIXL(t)
	without := filepath.Join(t.TempDir(), "python")
	testenv.WriteProgram(t, without, "#!/bin/sh\nexec "+testenv.Python(t)+" \"$@\"\n")
	for _, tt := range []struct{ name, python, transport, want string }{
		{"no interpreter", "/nowhere/python", "", "`vllm-vcr capture nixl` installs a Python with nixl"},
		{"no nixl", without, "", "has no nixl"},
		{"no transport", python, "carrier-pigeon", "UCX has no transport that works here, with {'UCX_TLS': 'carrier-pigeon'}"},
		{"it ends", "/bin/false", "", "ended: exit status 1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("UCX_TLS", tt.transport)
			if tt.transport == "" {
				os.Unsetenv("UCX_TLS")
			}
			_, err := agent.Start(t.Context(), agent.Options{Python: tt.python, Length: block})
			require.ErrorContains(t, err, "NIXL: ", tt.want)
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := agent.Start(ctx, agent.Options{Python: python, Length: block})
	require.ErrorIs(t, err, context.Canceled)
}

func TestPattern(t *testing.T) {
	p := make([]byte, 3*block)
	hashes := []uint64{1, 2, 3}
	for i, hash := range hashes {
		agent.Fill(p[i*block:(i+1)*block], hash)
	}
	require.Equal(t, agent.WrongBlocks(p, hashes), 0, "wrong blocks")
	require.Equal(t, agent.WrongBlocks(p, []uint64{2, 1, 3}), 2, "wrong blocks of two that changed places")
	if text := string(p); strings.Trim(text, "01234567") != "" {
		t.Error("bytes that make values of 1 or more")
	}
}

func start(t *testing.T, blocks int64) agent.Agent {
	t.Helper()
	a, err := agent.Start(t.Context(), agent.Options{Python: testenv.NIXL(t), Length: blocks * block})
	require.NoError(t, err)
	t.Cleanup(func() { a.Close() })
	return a
}

func connect(t *testing.T, from, to agent.Agent) agent.Peer {
	t.Helper()
	peer, err := from.Connect(t.Context(), to.Metadata())
	require.NoError(t, err)
	return peer
}

// fill writes the contents of blocks, and returns the address of the region.
func fill(t *testing.T, a agent.Agent, hashes map[int]uint64) uint64 {
	t.Helper()
	p := make([]byte, block)
	for at, hash := range hashes {
		agent.Fill(p, hash)
		_, err := a.WriteAt(p, int64(at)*block)
		require.NoError(t, err)
	}
	base, _ := a.Region()
	return base
}

func local(t *testing.T, a agent.Agent, blocks int) []byte {
	t.Helper()
	p := make([]byte, blocks*block)
	_, err := a.ReadAt(p, 0)
	require.NoError(t, err)
	return p
}
