package capture

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"
)

// envOwner makes TestGuard the owner of a guarded process: "guarded", or "released" once that is over.
const envOwner = "VLLM_VCR_TEST_OWNER"

// All processes of a group die with their owner, unless the guard was released before.
func TestGuard(t *testing.T) {
	if mode := os.Getenv(envOwner); mode != "" {
		ownGuarded(t, mode)
		return
	}
	for _, mode := range []string{"guarded", "released"} {
		t.Run(mode, func(t *testing.T) {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			owner := exec.Command(os.Args[0], "-test.run=^TestGuard$")
			owner.Env = append(os.Environ(), envOwner+"="+mode)
			owner.Stdout, owner.Stderr = w, os.Stderr
			if err := owner.Start(); err != nil {
				t.Fatal(err)
			}
			w.Close()
			lines := bufio.NewReader(r)
			line, err := lines.ReadString('\n')
			if err != nil || line != "up\n" {
				t.Errorf("the owner said %q, %v", line, err)
			}
			_ = owner.Process.Kill()
			_ = owner.Wait()
			wantEnd(t, r, lines, mode == "guarded")
		})
	}
}

// wantEnd checks whether whoever holds the other end of a pipe ends by itself. If not, it is asked to.
func wantEnd(t *testing.T, r *os.File, lines io.Reader, want bool) {
	t.Helper()
	patience := 30 * time.Second
	if !want {
		patience = 300 * time.Millisecond
	}
	if err := r.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, lines); (err == nil) != want {
		t.Errorf("it ended by itself: %v, want %v", err == nil, want)
	}
}

// ownGuarded starts a shell with a child in a session of its own, guards it, and waits to be killed.
func ownGuarded(t *testing.T, mode string) {
	cmd := exec.Command("sh", "-c", "sleep 600 & wait")
	if mode == "released" {
		cmd.Args[2] = "sleep 5 & wait" // nobody ends it
	}
	cmd.Stdout = os.Stdout
	ownSession(cmd)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	release, err := guard(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if mode == "released" {
		release()
	}
	_, _ = os.Stdout.WriteString("up\n")
	time.Sleep(time.Minute)
}
