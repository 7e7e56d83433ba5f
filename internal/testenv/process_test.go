package testenv

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A shell that ignores SIGTERM, with a child that does so too.
const stubborn = `trap "" TERM; sleep 600 & echo ready; while :; do wait; done`

func TestProcessKillsAStubbornGroup(t *testing.T) {
	peer, stdout := startPiped(t, exec.Command("sh", "-c", stubborn))
	peer.grace = 50 * time.Millisecond
	readLine(t, stdout)

	peer.Stop()

	if got := killedBy(peer.Err()); got != syscall.SIGKILL {
		t.Errorf("ended by signal %v, want SIGKILL: %v", got, peer.Err())
	}
	wantEverybodyGone(t, stdout)
}

func TestProcessStopsByTermFirst(t *testing.T) {
	peer, stdout := startPiped(t, exec.Command("sh", "-c", `trap "exit 7" TERM; sleep 600 & echo ready; wait`))
	readLine(t, stdout)

	peer.Stop()

	var exit *exec.ExitError
	if err := peer.Err(); !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("ended with %v, want exit code 7 of its SIGTERM handler", err)
	}
	wantEverybodyGone(t, stdout)
}

func TestProcessTakesItsChildrenWhenItEndsByItself(t *testing.T) {
	peer, stdout := startPiped(t, exec.Command("sh", "-c", `sleep 600 & echo ready`))

	if err := peer.Err(); err != nil {
		t.Errorf("ended with %v, want exit code 0", err)
	}
	wantEverybodyGone(t, stdout)
}

func TestProcessStopsAtTestEndAndLogsOnFailure(t *testing.T) {
	tests := []struct {
		name, script string
		fail         bool
		want         []string // in the log; none: no log
	}{
		{name: "test passed", script: "echo ready; exec sleep 600"},
		{
			name: "test failed", script: "echo to-stderr >&2; echo ready; exec sleep 600", fail: true,
			want: []string{"demo", "was stopped: signal: terminated", "to-stderr"},
		},
		{
			name: "test failed as the process died", script: "echo broken >&2; exit 3", fail: true,
			want: []string{"demo", "ended by itself: exit status 3", "broken"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			fake := newFakeTB(t)
			var peer *Peer
			fake.run(func(tb testing.TB) {
				cmd := exec.Command("sh", "-c", test.script)
				r := pipeStdout(t, cmd)
				peer = Process(tb, "demo", cmd)
				cmd.Stdout.(io.Closer).Close()
				if _, err := r.ReadString('\n'); err != nil {
					<-peer.Done()
				}
				if test.fail {
					tb.Fatal("something else")
				}
			})
			if !peer.exited() {
				t.Fatal("the process outlived its test")
			}
			if len(test.want) == 0 && fake.logged != "" {
				t.Errorf("a passing test logged %q", fake.logged)
			}
			for _, want := range test.want {
				if !strings.Contains(fake.logged, want) {
					t.Errorf("log lacks %q:\n%s", want, fake.logged)
				}
			}
		})
	}
}

func TestProcessThatCannotStart(t *testing.T) {
	fake := newFakeTB(t)
	fake.run(func(tb testing.TB) { Process(tb, "demo", exec.Command("/nonexistent/binary")) })
	if !strings.Contains(fake.fatal, "start demo") || !strings.Contains(fake.fatal, "/nonexistent/binary") {
		t.Errorf("got fatal %q, want one that names the peer and the path", fake.fatal)
	}
}

// The child of a killed test binary must die: a helper process starts one, and is killed with SIGKILL.
func TestProcessDiesWithTheTestBinary(t *testing.T) {
	if os.Getenv("TESTENV_HELPER") == "1" {
		cmd := exec.Command("sleep", "600")
		cmd.Stdout = os.Stdout // held until it dies
		Process(t, "orphan", cmd)
		os.Stdout.WriteString("ready\n")
		select {}
	}
	if !diesWithParent {
		t.Skip("no signal on the parent's death on this system")
	}
	helper := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	helper.Env = append(os.Environ(), "TESTENV_HELPER=1")
	r := pipeStdout(t, helper)
	if err := helper.Start(); err != nil {
		t.Fatal(err)
	}
	helper.Stdout.(io.Closer).Close()
	readLine(t, r)
	helper.Process.Kill()
	helper.Wait()
	wantEverybodyGone(t, r)
}

// startPiped starts cmd and returns a reader of its stdout, which ends when everybody who holds it has died.
func startPiped(t *testing.T, cmd *exec.Cmd) (*Peer, *bufio.Reader) {
	t.Helper()
	r := pipeStdout(t, cmd)
	peer := Process(t, "shell", cmd)
	cmd.Stdout.(io.Closer).Close()
	return peer, r
}

func pipeStdout(t *testing.T, cmd *exec.Cmd) *bufio.Reader {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	cmd.Stdout = w
	return bufio.NewReader(r)
}

func readLine(t *testing.T, r *bufio.Reader) {
	t.Helper()
	if line, err := r.ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("read %q, %v from the child, want \"ready\"", line, err)
	}
}

// wantEverybodyGone blocks until the last holder of the stream has died; a survivor shows as a test that never ends.
func wantEverybodyGone(t *testing.T, r *bufio.Reader) {
	t.Helper()
	if _, err := io.Copy(io.Discard, r); err != nil {
		t.Fatal(err)
	}
}

func killedBy(err error) syscall.Signal {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return 0
	}
	return exit.Sys().(syscall.WaitStatus).Signal()
}
