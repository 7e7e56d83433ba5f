//go:build unix

package process

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// A shell that ignores SIGTERM, with a child that does so too.
const stubborn = `trap "" TERM; sleep 600 & echo ready; while :; do wait; done`

func TestStopKillsAStubbornGroup(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	tests := []struct {
		name  string
		ctx   context.Context
		grace time.Duration
	}{
		{name: "the grace is over", ctx: t.Context(), grace: time.Millisecond},
		{name: "the context ends", ctx: ended, grace: time.Hour},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p, stdout := startPiped(t, exec.Command("sh", "-c", stubborn), Options{Grace: test.grace})
			readLine(t, stdout)

			require.NoError(t, p.Stop(test.ctx))

			if got := killedBy(p.Wait(t.Context())); got != syscall.SIGKILL || !p.Killed() {
				t.Errorf("ended by signal %v, killed: %v, want SIGKILL", got, p.Killed())
			}
			wantEverybodyGone(t, stdout)
		})
	}
}

// A process that only has to wait for a processor is not one that hangs: it ends by itself, after more time than the grace has.
func TestStopWaitsForTheStarved(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the system does not tell who waits for a processor")
	}
	const script = `trap 'i=0; while [ $((i += 1)) -le '$1' ]; do (while :; do :; done) & done; sleep 0.9; exit 7' TERM
		echo ready; while :; do sleep 0.01; done`
	p, stdout := startPiped(t, exec.Command("sh", "-c", script, "sh", strconv.Itoa(3*runtime.NumCPU())), Options{Grace: 300 * time.Millisecond})
	readLine(t, stdout)
	require.NoError(t, p.Stop(t.Context()))
	var exit *ExitError
	if err := p.Wait(t.Context()); !errors.As(err, &exit) || exit.Code != 7 || p.Killed() {
		t.Errorf("ended with %v, want exit code 7", err)
	}
	wantEverybodyGone(t, stdout)
}

// TestWatchSilence drives the watch look by look: what is heard starts it anew, and what the group waited for a processor
// does not count.
func TestWatchSilence(t *testing.T) {
	const d = 20 * time.Second // a look is a second
	tests := []struct {
		name    string
		heardAt int                          // the look at which something came
		waited  func(look int) time.Duration // what the group had waited for a processor by then
		looks   int                          // until it is silent
	}{
		{"silent from the beginning", 0, func(int) time.Duration { return 0 }, 20},
		{"heard of once", 15, func(int) time.Duration { return 0 }, 35},
		{"half the time without a processor", 0, func(look int) time.Duration { return time.Duration(look) * time.Second / 2 }, 39},
		{"never a processor", 0, func(look int) time.Duration { return time.Duration(look) * time.Second }, 1 + 8*20 + 19},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			looks, silent := 0, false
			heard := func() uint64 {
				if test.heardAt > 0 && looks >= test.heardAt {
					return 1
				}
				return 0
			}
			after := func(every time.Duration) <-chan time.Time {
				if every != time.Second {
					t.Fatalf("it looks every %v", every)
				}
				looks++
				now := make(chan time.Time, 1)
				now <- time.Time{}
				return now
			}
			watchSilence(t.Context(), d, heard, func() time.Duration { return test.waited(looks) }, after, func() { silent = true })
			require.True(t, silent && looks == test.looks, "silent: %v, after %d looks, want %d", silent, looks, test.looks)
		})
	}
}

func TestStopTerminatesFirst(t *testing.T) {
	cmd := exec.Command("sh", "-c", `trap "echo closing >&2; exit 7" TERM; sleep 600 & echo ready; wait`)
	p, stdout := startPiped(t, cmd, Options{Grace: time.Hour})
	readLine(t, stdout)

	for range 2 { // to stop what has ended is no error
		require.NoError(t, p.Stop(t.Context()))
	}

	var exit *ExitError
	if err := p.Wait(t.Context()); !errors.As(err, &exit) || exit.Code != 7 || exit.Tail != "closing\n" {
		t.Errorf("ended with %v, want exit code 7 and the words of its SIGTERM handler", err)
	}
	require.True(t, !p.Killed(), "it ended by itself, and is said to be killed")
	wantEverybodyGone(t, stdout)
}

func TestGroupGoesWithItsLeader(t *testing.T) {
	p, stdout := startPiped(t, exec.Command("sh", "-c", `sleep 600 & echo ready`), Options{})

	require.NoErrorf(t, p.Wait(t.Context()), "ended with: want exit code 0")
	wantEverybodyGone(t, stdout)
}

// The child of the process holds its output open and would keep its owner waiting for ten minutes.
func TestDoneInSpiteOfAnOpenOutput(t *testing.T) {
	p := start(t, exec.Command("sh", "-c", `sleep 600 & echo last words; exit 3`), Options{})

	var exit *ExitError
	if err := p.Wait(t.Context()); !errors.As(err, &exit) || exit.Code != 3 || exit.Tail != "last words\n" {
		t.Errorf("ended with %v, want exit code 3 and its last words", err)
	}
}

func TestExitTellsHowItEnded(t *testing.T) {
	tests := []struct {
		name, script string
		code         int
		want         string
		ok           bool
	}{
		{
			name: "success", script: "echo to stdout; echo to stderr >&2", ok: true,
			want: "demo (sh -c echo to stdout; echo to stderr >&2) ended: exit status 0; the last of its output:\n| to stdout\n| to stderr",
		},
		{name: "failure", script: "exit 3", code: 3, want: "demo (sh -c exit 3) ended: exit status 3, without any output"},
		{name: "signal", script: "kill -9 $$", code: -1, want: "demo (sh -c kill -9 $$) ended: signal: killed, without any output"},
		{
			name: "more than the tail", script: "echo 0123456789; exit 1", code: 1,
			want: "demo (sh -c echo 0123456789; exit 1) ended: exit status 1; the last of its output:\n| [3 bytes before this]\n| 3456789",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			opt := Options{Name: "demo", Tail: 8}
			if test.ok {
				opt.Tail = 0
			}
			p := start(t, exec.Command("sh", "-c", test.script), opt)
			err := p.Wait(t.Context())
			require.True(t, (err == nil) == test.ok, "Wait = %v, want no error: %v", err, test.ok)
			exit := p.Exit()
			if exit == nil {
				t.Fatal("Exit is nil after Wait")
			}
			require.True(t, exit.Code == test.code && exit.Error() == test.want, "got code %d, %q\nwant %d, %q", exit.Code, exit, test.code, test.want)
		})
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	p, stdout := startPiped(t, exec.Command("sh", "-c", `echo ready; exec sleep 600`), Options{Name: "demo"})
	readLine(t, stdout)
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(enough)

	if err := p.Wait(ctx); !errors.Is(err, enough) || !strings.Contains(err.Error(), "demo") {
		t.Errorf("Wait = %v, want the cause and the name", err)
	}
	if exit := p.Exit(); exit != nil {
		t.Errorf("Exit = %v while it runs", exit)
	}
}

func TestOutputIsCopied(t *testing.T) {
	var copied bytes.Buffer
	p := start(t, exec.Command("sh", "-c", "echo one; echo two >&2; echo three"), Options{Tail: 1, Output: &copied})
	require.NoError(t, p.Wait(t.Context()))
	require.Equal(t, copied.String(), "one\ntwo\nthree\n", "copied")
}

func TestStartNamesWhatItCannotStart(t *testing.T) {
	_, err := Start(exec.Command("/nonexistent/binary"), Options{Name: "demo"})
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "start demo") || !strings.Contains(err.Error(), "/nonexistent/binary") {
		t.Errorf("got %v, want an error that names the process and the path", err)
	}
}

// Whoever ends in the next moment takes everything along, whatever that thinks of SIGTERM.
func TestKillAll(t *testing.T) {
	var pipes []*bufio.Reader
	var all []*Process
	for range 2 {
		p, stdout := startPiped(t, exec.Command("sh", "-c", stubborn), Options{Grace: time.Hour})
		readLine(t, stdout)
		all, pipes = append(all, p), append(pipes, stdout)
	}
	KillAll()
	for i, p := range all {
		require.Equal(t, killedBy(p.Wait(t.Context())), syscall.SIGKILL, "process %d ended by signal", i)
		wantEverybodyGone(t, pipes[i])
	}
	running.Range(func(p, _ any) bool {
		t.Errorf("%v has ended, and is still held", p)
		return true
	})
}

// What a killed owner started must die: a helper process starts it, and is killed with SIGKILL.
func TestProcessDiesWithItsOwner(t *testing.T) {
	tests := []struct {
		name    string
		command string // holds stdout until it dies
		opt     Options
		skip    bool
	}{
		{name: "one process", command: "exec sleep 600", skip: !diesWithOwner},
		{name: "a guarded family", command: "sleep 600 & wait", opt: Options{Guarded: true}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if os.Getenv("PROCESS_TEST_HELPER") == "1" {
				cmd := exec.Command("sh", "-c", test.command)
				cmd.Stdout = os.Stdout
				start(t, cmd, test.opt)
				// Not before: an owner that dies while it starts a process has not yet set the guard.
				fmt.Println("ready")
				select {}
			}
			if test.skip {
				t.Skip("no signal on the parent's death on this system")
			}
			wantDeathWithOwner(t)
		})
	}
}

// wantDeathWithOwner has a helper run this test, and kills it.
func wantDeathWithOwner(t *testing.T) {
	t.Helper()
	pattern := "^" + strings.ReplaceAll(t.Name(), "/", "$/^") + "$"
	helper := exec.Command(os.Args[0], "-test.run="+pattern)
	helper.Env = append(os.Environ(), "PROCESS_TEST_HELPER=1")
	r := pipeStdout(t, helper)
	require.NoError(t, helper.Start())
	helper.Stdout.(io.Closer).Close()
	readLine(t, r)
	helper.Process.Kill()
	helper.Wait()
	wantEverybodyGone(t, r)
}

// A guard does nothing to a group that ended, and is itself gone: the owner has no child left.
func TestGuardGoesWithItsGroup(t *testing.T) {
	p := start(t, exec.Command("true"), Options{Guarded: true})
	require.NoError(t, p.Wait(t.Context()))
	if _, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); !errors.Is(err, syscall.ECHILD) {
		t.Errorf("waiting for a child: %v, want none", err)
	}
}

func start(t *testing.T, cmd *exec.Cmd, opt Options) *Process {
	t.Helper()
	p, err := Start(cmd, opt)
	require.NoError(t, err)
	t.Cleanup(func() { p.Stop(context.Background()) })
	return p
}

// startPiped starts cmd and returns a reader of its stdout, which ends when everybody who holds it has died.
func startPiped(t *testing.T, cmd *exec.Cmd, opt Options) (*Process, *bufio.Reader) {
	t.Helper()
	r := pipeStdout(t, cmd)
	p := start(t, cmd, opt)
	cmd.Stdout.(io.Closer).Close()
	return p, r
}

func pipeStdout(t *testing.T, cmd *exec.Cmd) *bufio.Reader {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
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

// asChild says in the environment of a process of this test binary what it is to do with its signals.
const asChild = "PROCESS_TEST_SIGNALS"

// TestSignals: the first signal ends the context and the third at once the process, with its temporary folders; when all is
// done, none does anything.
func TestSignals(t *testing.T) {
	if what := os.Getenv(asChild); what != "" {
		signalled(t, what)
		return
	}
	for _, test := range []struct {
		name   string
		code   int
		signal syscall.Signal
		folder bool // is left
	}{
		{name: "one", code: 3, folder: true},
		{name: "two at once", code: 3, folder: true},
		{name: "again and again", code: -1, signal: syscall.SIGTERM},
		{name: "after the end", code: 3, folder: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			temp := t.TempDir()
			cmd := exec.Command(os.Args[0], "-test.run=^TestSignals$")
			cmd.Env = append(os.Environ(), asChild+"="+test.name, "TMPDIR="+temp)
			out, _ := cmd.CombinedOutput()
			status := cmd.ProcessState.Sys().(syscall.WaitStatus)
			if cmd.ProcessState.ExitCode() != test.code || test.code < 0 && status.Signal() != test.signal {
				t.Errorf("ended by %v, want code %d or %v: %s", cmd.ProcessState, test.code, test.signal, out)
			}
			if left, err := os.ReadDir(temp); err != nil || (len(left) > 0) != test.folder {
				t.Errorf("folders left: %v, %v", left, err)
			}
		})
	}
}

// signalled is the child.
func signalled(t *testing.T, what string) {
	if _, _, err := MkdirTemp("child-*"); err != nil {
		t.Fatal(err)
	}
	ctx, finish := NotifyContext(context.Background(), 3)
	terminate := func() {
		require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGTERM))
	}
	switch what {
	case "one", "two at once":
		terminate()
		<-ctx.Done()
		if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) || cause.Error() != "terminated signal received" {
			t.Fatalf("the context ended by %v", cause)
		}
		if what == "two at once" {
			terminate()
		}
	case "again and again":
		for { // those that come before the last was seen are one
			terminate()
			time.Sleep(time.Millisecond)
		}
	case "after the end":
		finish()
		for range 10 {
			terminate()
			time.Sleep(time.Millisecond)
		}
	}
	if what != "after the end" {
		finish()
	}
	os.Exit(3)
}

// TestWatchIdle: a process that sleeps is idle, and one of a program whose work is done elsewhere may be busy.
func TestWatchIdle(t *testing.T) {
	if _, known := groupRan(os.Getpid()); !known && runtime.GOOS != "linux" {
		t.Skip("this system does not tell what a process does")
	}
	sleep, err := exec.LookPath("sleep")
	require.NoError(t, err)
	docker := filepath.Join(t.TempDir(), "docker")
	require.NoError(t, os.Symlink(sleep, docker))
	idle := make(chan struct{})
	sleeps, err := Start(exec.Command(sleep, "600"), Options{})
	require.NoError(t, err)
	defer sleeps.Stop(t.Context())
	sleeps.WatchIdle(t.Context(), 20*time.Millisecond, func() { close(idle) })
	<-idle
	remote, err := Start(exec.Command(docker, "600"), Options{})
	require.NoError(t, err)
	defer remote.Stop(t.Context())
	if ran, known := groupRan(sleeps.Pid()); !known || ran <= 0 {
		t.Errorf("a process has run for %v (known: %v)", ran, known)
	}
	if _, known := groupRan(remote.Pid()); known {
		t.Error("it is known what docker does")
	}
}
