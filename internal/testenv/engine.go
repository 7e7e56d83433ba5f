package testenv

import (
	"os"
	"path/filepath"
	"testing"
)

// PlayerForEngine is a player for [EnginePeers]. It is the vllm-vcr of PATH.
const PlayerForEngine = "exec vllm-vcr play --handshake-address tcp://127.0.0.1:$port --vllm-version 0.33.0 " +
	"--vocab-size 2048 --max-model-len 4096"

// EnginePeers is a folder of peers, for $VLLM_VCR_PEERS, with the real frontend of 0.33.0, and a shell script in place of
// its engine that has the port of its handshake as $port.
func EnginePeers(t testing.TB, engine string) string {
	t.Helper()
	dir := t.TempDir()
	home := filepath.Join(dir, "engines", "0.33.0")
	site := filepath.Join(home, "lib", "python3.11", "site-packages")
	port := "#!/bin/sh\n" + `while [ $# -gt 1 ]; do [ "$1" != --data-parallel-rpc-port ] || port=$2; shift; done` + "\n"
	for path, text := range map[string]string{
		filepath.Join(home, "whole"):                                    "operations of none\n",
		filepath.Join(home, "packages"):                                 "a==1\nvllm==0.33.0+cpu\n",
		filepath.Join(home, "bin", "python"):                            port + engine + "\n",
		filepath.Join(site, "a-1.dist-info", "RECORD"):                  "",
		filepath.Join(site, "vllm-0.33.0+cpu.dist-info", "METADATA"):    "",
		filepath.Join(dir, "frontends", "0.33.0", "this folder is one"): "",
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(Frontend(t, "0.33.0"), filepath.Join(dir, "frontends", "0.33.0", "vllm-rs")); err != nil {
		t.Fatal(err)
	}
	return dir
}
