package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/zmq"
)

// TestServeScripts asks servers as files say.
func TestServeScripts(t *testing.T) {
	asksServers(t, "serve.txt")
	asksServers(t, "simulator.txt")
}

// TestSimulatorDiffers asks for each row of "What stays different" of the page.
func TestSimulatorDiffers(t *testing.T) {
	page, err := os.ReadFile("../../docs/simulator.md")
	require.NoError(t, err)
	_, list, _ := strings.Cut(string(page), "## What stays different\n")
	rows := strings.Split(list, "\n- ")[1:]
	asked := asksServers(t, "differs.txt")
	for i, row := range rows {
		if i >= len(asked) || !strings.HasPrefix(row, asked[i]) {
			t.Fatalf("no test, or not at its place: %q", row)
		}
	}
	if len(asked) != len(rows) {
		t.Errorf("%d rows and %d tests", len(rows), len(asked))
	}
}

// asksServers does what a file says, and returns the names of its parts.
func asksServers(t *testing.T, file string) (names []string) {
	t.Helper()
	text, err := os.ReadFile("testdata/serve/" + file)
	require.NoError(t, err)
	for _, part := range strings.Split(string(text), "\n== ")[1:] {
		name, rest, _ := strings.Cut(part, "\n")
		names = append(names, name)
		t.Run(name, func(t *testing.T) {
			a := asker{T: t}
			lines := strings.Split(strings.TrimSpace(rest), "\n")
			for len(lines) > 0 {
				lines = a.step(lines)
			}
		})
	}
	return names
}

type asker struct {
	*testing.T
	server *served
	events chan string // batches
	answer string
}

// step does what the first lines want.
func (a *asker) step(lines []string) (rest []string) {
	a.Helper()
	kind, text, _ := strings.Cut(lines[0], " ")
	switch kind {
	case "#", "":
	case "$":
		a.start(strings.ReplaceAll(text, "EVENTS", "ipc://"+a.TempDir()+"/events"))
	case "!":
		if words := regexp.MustCompile(`^(\d) (.*) \| (.*)$`).FindStringSubmatch(text); words != nil {
			out, err := exec.CommandContext(a.Context(), "vllm-vcr", append([]string{"serve", "--port", "0"}, a.flags(words[3])...)...).CombinedOutput()
			if fmt.Sprintf("exit status %s", words[1]) != fmt.Sprint(err) || !strings.Contains(string(out), words[2]) {
				a.Errorf("%s: %v: %s", text, err, out)
			}
		} else if regexp.MustCompile(text).MatchString(a.answer) {
			a.Errorf("the answer has %s: %s", text, a.answer)
		}
	case "events":
		a.await(regexp.MustCompile(text))
	default:
		return a.ask(lines)
	}
	return lines[1:]
}

func (a *asker) flags(text string) []string {
	return strings.Fields(strings.ReplaceAll(text, "--config ", "--config testdata/serve/"))
}

// start starts a server. The first answer of one that does as the simulator is that it is ready.
func (a *asker) start(text string) {
	flags := a.flags(text)
	for name, value, is := strings.Cut(flags[0], "="); is && name[0] != '-'; name, value, is = strings.Cut(flags[0], "=") {
		a.Setenv(name, value)
		flags = flags[1:]
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(a, err)
	free.Close()
	_, port, _ := net.SplitHostPort(free.Addr().String())
	first := make(chan string, 1)
	go func() {
		answer, err := http.Get("http://127.0.0.1:" + port + "/health")
		for ; err != nil && a.Context().Err() == nil; answer, err = http.Get("http://127.0.0.1:" + port + "/health") {
			time.Sleep(time.Millisecond)
		}
		first <- fmt.Sprint(answer.Status, err)
	}()
	a.server = startServe(a.T, append(flags, "--frontend", "builtin", "--quiet", "--port", port)...)
	if status := <-first; status != "200 OK<nil>" && strings.Contains(text, "--model") {
		a.Errorf("the first answer is %s", status)
	}
	if _, endpoint, publishes := strings.Cut(text, "--zmq-endpoint "); publishes {
		a.subscribe(endpoint)
	}
}

// ask sends a request.
func (a *asker) ask(lines []string) (rest []string) {
	a.Helper()
	how, line, _ := strings.Cut(lines[0], " ")
	if len(how) > 1 {
		how, line = "", lines[0]
	}
	method, path, _ := strings.Cut(line, " ")
	path, header, _ := strings.Cut(path, " ")
	key, value, _ := strings.Cut(header, ": ")
	body := ""
	if lines = lines[1:]; method[0] == 'P' && !regexp.MustCompile(`^\d{3}( |$)`).MatchString(lines[0]) {
		body, lines = strings.Replace(lines[0], "LARGE", strings.Repeat("a ", 1<<20), 1), lines[1:]
	}
	send := func(ctx context.Context) (*http.Response, error) {
		r, err := http.NewRequestWithContext(ctx, method, a.server.URL+path, strings.NewReader(body))
		require.NoError(a, err)
		r.Header.Set("Content-Type", "application/json")
		if key != "" {
			r.Header.Set(key, value)
		}
		return http.DefaultClient.Do(r)
	}
	if how == "&" {
		go func() { _, _ = send(a.Context()) }()
		return lines
	}
	status, want, _ := strings.Cut(lines[0], " ")
	matches := regexp.MustCompile("(?s)" + want)
	for begun := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		ctx, leave := context.WithCancel(a.Context())
		answer, err := send(ctx)
		require.NoError(a, err)
		if how == "-" {
			leave()
		}
		text, _ := io.ReadAll(answer.Body)
		leave()
		a.answer = fmt.Sprintf("%d %s\n%v", answer.StatusCode, text, answer.Header)
		if strings.HasPrefix(a.answer, status) && matches.MatchString(a.answer) {
			return lines[1:]
		}
		if method != http.MethodGet || time.Since(begun) > 20*time.Second {
			a.Fatalf("%s %s: want %s: %s", method, path, lines[0], a.answer)
		}
	}
}

// subscribe waits until KV events come.
func (a *asker) subscribe(endpoint string) {
	from, err := zmq.Dial(a.Context(), endpoint, zmq.Sub, zmq.Options{})
	require.NoError(a, err)
	require.NoError(a, from.Subscribe(nil))
	a.events = make(chan string, 1000)
	go func() {
		for m, err := from.Recv(); err == nil; m, err = from.Recv() {
			var batch []any
			err = msgpack.Unmarshal(m[2], &batch)
			a.events <- fmt.Sprint(batch, err)
		}
	}()
	for i := 0; len(a.events) == 0; i++ {
		a.server.ask(a.T, "/v1/completions", fmt.Sprintf(`{"model": "m", "max_tokens": 1, "prompt": "%d%s"}`, i, strings.Repeat(" w", 20)))
	}
}

// await reads KV events until there is one.
func (a *asker) await(want *regexp.Regexp) {
	a.Helper()
	late := time.After(20 * time.Second)
	for {
		select {
		case batch := <-a.events:
			if a.Log(batch); want.MatchString(batch) {
				return
			}
		case <-late:
			a.Fatalf("no event has %s", want)
		}
	}
}
