package load

import (
	"archive/zip"
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vllm-vcr/conformance/internal/frontends/openai"
)

// A command is a line of a script.
type command struct {
	line     int
	wait     bool // for all that was begun
	optional bool // any status will do
	times    int  // at once
	aside    bool // go on at once
	peer     bool // sent to the peer
	begin    int  // go on after so many events, and read the rest beside what follows
	hangUp   int  // leave after so many events
	method   string
	path     string
	header   map[string]string
	body     map[string]any
}

// parseScript reads a script: a request a line, in the order in which they are sent.
//
//	complete {"max_tokens": 4}                  POST /v1/completions, with the defaults of complete
//	chat {"temperature": 1}                     POST /v1/chat/completions, with those of chat
//	POST /sleep?level=1 X-Header:value {…}      any other; GET too
//	? POST /sleep                               the server may refuse it, or hang up: not every line knows it
//	6x complete {"prompt": "$tokens 150"}       six at once, each with other random tokens
//	hang 3 complete {…}                         the client leaves after three events
//	begin 3 complete {…}                        what follows is sent after three events of this one
//	aside complete {…}                          what follows is sent at once: nothing may come of this one before
//	wait                                        until all that was begun has ended
//	peer complete {…}                           to the frontend of the peer
//
// Of strings in a body, "$tokens N" is a list of N random tokens, "$repeat N A B C" A B C N times, "$image N" the URL of a
// picture, "$embeds N V" a tensor of N rows of V, "$dir PATH" a path in the folder of the session, "$transfer" the
// kv_transfer_params of the last answer that had some, and $i counts those that are sent at once.
func parseScript(text string) ([]command, error) {
	var script []command
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		c, err := parseCommand(line)
		if err != nil {
			return nil, fmt.Errorf("line %d, %q: %w", i+1, line, err)
		}
		c.line = i + 1
		script = append(script, c)
	}
	if len(script) == 0 {
		return nil, errors.New("there is none")
	}
	return script, nil
}

func parseCommand(line string) (command, error) {
	c := command{times: 1, header: map[string]string{}}
	words, body, hasBody := strings.Cut(line, "{")
	if hasBody {
		if err := json.Unmarshal([]byte("{"+body), &c.body); err != nil {
			return c, fmt.Errorf("the body is not a JSON object: %w", err)
		}
	}
	for rest := strings.Fields(words); len(rest) > 0; {
		word := rest[0]
		rest = rest[1:]
		number := 0
		if len(rest) > 0 {
			number, _ = strconv.Atoi(rest[0])
		}
		times, isTimes := strings.CutSuffix(word, "x")
		switch n, err := strconv.Atoi(times); {
		case word == "wait":
			c.wait = true
		case word == "?":
			c.optional = true
		case word == "aside":
			c.aside = true
		case word == "peer":
			c.peer = true
		case isTimes && err == nil && n > 0:
			c.times = n
		case (word == "hang" || word == "begin") && number > 0:
			rest = rest[1:]
			if word == "hang" {
				c.hangUp = number
			} else {
				c.begin = number
			}
		case word == "complete":
			c.method, c.path = http.MethodPost, "/v1/completions"
			c.body = withDefaults(c.body, map[string]any{"prompt": "hello world"})
		case word == "chat":
			c.method, c.path = http.MethodPost, "/v1/chat/completions"
			c.body = withDefaults(c.body, map[string]any{"messages": []any{map[string]any{"role": "user", "content": "hi there"}}})
		case word == http.MethodGet || word == http.MethodPost:
			if len(rest) == 0 || !strings.HasPrefix(rest[0], "/") {
				return c, errors.New("want a path behind " + word)
			}
			c.method, c.path, rest = word, rest[0], rest[1:]
		case strings.Contains(word, ":") && c.path != "":
			name, value, _ := strings.Cut(word, ":")
			c.header[name] = value
		default:
			return c, fmt.Errorf("%q is not understood", word)
		}
	}
	switch {
	case c.wait == (c.path != ""):
		return c, errors.New("want one request, or wait")
	case (c.begin > 0 || c.hangUp > 0) && c.body == nil:
		return c, errors.New("only an answer that is streamed has events")
	}
	if c.begin > 0 || c.hangUp > 0 {
		c.body["stream"] = true
	}
	return c, nil
}

// withDefaults are the keys of a completion unless the line has them. A key that is null is left out.
func withDefaults(body, defaults map[string]any) map[string]any {
	all := map[string]any{"model": "tiny", "max_tokens": 8, "temperature": 0}
	maps.Copy(all, defaults)
	maps.Copy(all, body)
	maps.DeleteFunc(all, func(_ string, v any) bool { return v == nil })
	return all
}

// SessionConfig says where [RunSession] sends requests.
type SessionConfig struct {
	URL  string
	Peer string // the URL of the peer, if the session has one
	Dir  string // of the session's material
}

// An Answer is what became of a request.
type Answer struct {
	Line   int    `json:"line"` // of the script
	Method string `json:"method"`
	Path   string `json:"path"`
	Status int    `json:"status"`
	// Text is the beginning of the answer; of a stream, of its first event.
	Text string `json:"text"`
}

// RunSession sends the requests of a session. An error is a request that had to be answered and was not; all answers so far are
// returned with it.
func RunSession(ctx context.Context, s *Session, cfg SessionConfig) ([]Answer, error) {
	r := &sessionRun{cfg: cfg, client: &http.Client{Transport: openai.NewTransport()}}
	defer r.client.CloseIdleConnections()
	for _, c := range s.script {
		if c.wait {
			r.begun.Wait()
			continue
		}
		var together sync.WaitGroup
		for i := range c.times {
			together.Add(1)
			r.begun.Go(func() {
				var once sync.Once
				goOn := func() { once.Do(together.Done) }
				defer goOn()
				if c.aside {
					goOn()
				}
				r.send(ctx, c, i, goOn)
			})
		}
		together.Wait()
		if r.failed() != nil {
			break
		}
	}
	r.begun.Wait()
	return r.answers, r.failed()
}

type sessionRun struct {
	cfg    SessionConfig
	client *http.Client
	begun  sync.WaitGroup

	mutex    sync.Mutex
	answers  []Answer
	err      error
	transfer json.RawMessage // the kv_transfer_params of the last answer that had some
}

func (r *sessionRun) failed() error {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.err
}

// patience is how long a request may take: the slowest make a whole engine sleep.
const patience = 15 * time.Minute

// send sends one request and reads its answer. goOn is called as soon as what follows may be sent.
func (r *sessionRun) send(ctx context.Context, c command, i int, goOn func()) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no whole answer within %v", patience))
	defer cancel()
	answer := Answer{Line: c.line, Method: c.method, Path: c.path}
	err := r.exchange(ctx, c, i, goOn, &answer)
	if err != nil || answer.Status >= http.StatusInternalServerError {
		r.client.CloseIdleConnections() // some frontends hang up after a failure: what follows begins with a connection of its own
	}
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.answers = append(r.answers, answer)
	if err != nil && c.optional && ctx.Err() == nil {
		// Some frontends hang up where a call fails in a way that they did not foresee.
		r.answers[len(r.answers)-1].Text, err = err.Error(), nil
	}
	if err == nil && answer.Status/100 != 2 && !c.optional {
		err = fmt.Errorf("status %d: %s", answer.Status, answer.Text)
	}
	if err != nil && r.err == nil {
		r.err = fmt.Errorf("requests: line %d, %s %s: %w", c.line, c.method, c.path, err)
	}
}

func (r *sessionRun) exchange(ctx context.Context, c command, i int, goOn func(), answer *Answer) error {
	var body io.Reader
	if c.body != nil {
		r.mutex.Lock()
		m := macros{dir: r.cfg.Dir, seed: uint64(c.line), i: i, transfer: r.transfer}
		r.mutex.Unlock()
		text, err := json.Marshal(m.expand(c.body))
		if err != nil {
			return err
		}
		body = bytes.NewReader(text)
	}
	url := r.cfg.URL
	if c.peer {
		url = r.cfg.Peer
	}
	request, err := http.NewRequestWithContext(ctx, c.method, url+c.path, body)
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	for name, value := range c.header {
		request.Header.Set(name, value)
	}
	response, err := r.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer.Status = response.StatusCode
	reader := bufio.NewReader(response.Body)
	for events := 0; ; {
		line, err := reader.ReadString('\n')
		if answer.Text == "" {
			answer.Text = openai.Quote([]byte(strings.TrimSpace(line)))
		}
		if strings.HasPrefix(line, "data:") {
			events++
		} else {
			r.keepTransfer(line)
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case c.hangUp > 0 && events >= c.hangUp:
			return nil
		case c.begin > 0 && events >= c.begin:
			goOn()
		}
	}
}

// keepTransfer keeps what an answer says of where the KV cache of its prompt is.
func (r *sessionRun) keepTransfer(answer string) {
	var said struct {
		Transfer map[string]any `json:"kv_transfer_params"`
	}
	if json.Unmarshal([]byte(answer), &said) != nil || said.Transfer == nil {
		return
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.transfer, _ = json.Marshal(said.Transfer) // it was JSON
}

// macros are the values of strings that begin with a dollar.
type macros struct {
	dir      string
	seed     uint64
	i        int
	transfer json.RawMessage
}

func (m macros) expand(value any) any {
	switch v := value.(type) {
	case map[string]any:
		all := make(map[string]any, len(v))
		for key, one := range v {
			all[key] = m.expand(one)
		}
		return all
	case []any:
		all := make([]any, len(v))
		for i, one := range v {
			all[i] = m.expand(one)
		}
		return all
	case string:
		return m.text(v)
	}
	return value
}

func (m macros) text(text string) any {
	if !strings.HasPrefix(text, "$") {
		return text
	}
	words := strings.Fields(text)
	number := func(at int) int {
		if at >= len(words) {
			return 0
		}
		n, _ := strconv.Atoi(words[at])
		return n
	}
	switch words[0] {
	case "$tokens":
		rng := rand.New(rand.NewPCG(m.seed, uint64(m.i)))
		tokens := make([]int, number(1))
		for i := range tokens {
			tokens[i] = 3 + rng.IntN(1990)
		}
		return tokens
	case "$repeat":
		var tokens []int
		for range number(1) {
			for at := 2; at < len(words); at++ {
				tokens = append(tokens, number(at))
			}
		}
		return tokens
	case "$image":
		return picture(uint64(number(1)))
	case "$embeds":
		value, _ := strconv.ParseFloat(words[2], 32)
		return embeddings(number(1), float32(value))
	case "$dir":
		return filepath.Join(append([]string{m.dir}, words[1:]...)...)
	case "$transfer":
		return m.transfer
	case "$i":
		return m.i
	case "$pick": // one of several words, in turn
		return words[1+m.i%(len(words)-1)]
	}
	return text
}

// picture is a small image of four colours, as the URL that holds it. What a processor makes of it compresses well.
func picture(seed uint64) string {
	rng := rand.New(rand.NewPCG(seed, 0))
	const side = 56
	var colours [4]color.RGBA
	for i := range colours {
		colours[i] = color.RGBA{byte(rng.UintN(256)), byte(rng.UintN(256)), byte(rng.UintN(256)), 255}
	}
	img := image.NewRGBA(image.Rect(0, 0, side, side))
	for y := range side {
		for x := range side {
			img.SetRGBA(x, y, colours[2*y/side*2+2*x/side])
		}
	}
	var file bytes.Buffer
	if err := png.Encode(&file, img); err != nil {
		panic(err) // into memory
	}
	return "data:image/png;base64," + base64.StdEncoding.EncodeToString(file.Bytes())
}

// embeddings is what torch.save writes of a float32 tensor of rows × 64 that is all one value, in base64.
func embeddings(rows int, value float32) string {
	const columns = 64
	var numbers []byte
	for range rows * columns {
		numbers = binary.LittleEndian.AppendUint32(numbers, math.Float32bits(value))
	}
	integer := func(n int) string { return "J" + string(binary.LittleEndian.AppendUint32(nil, uint32(n))) }
	text := func(s string) string { return "X" + string(binary.LittleEndian.AppendUint32(nil, uint32(len(s)))) + s }
	// torch._utils._rebuild_tensor_v2((storage), 0, (rows, columns), (columns, 1), False, OrderedDict()) as a pickle
	pickle := "\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(" +
		"(" + text("storage") + "ctorch\nFloatStorage\n" + text("0") + text("cpu") + integer(rows*columns) + "tQ" +
		integer(0) + integer(rows) + integer(columns) + "\x86" + integer(columns) + integer(1) + "\x86\x89" +
		"ccollections\nOrderedDict\n)RtR."
	var file bytes.Buffer
	z := zip.NewWriter(&file)
	for _, entry := range []struct{ name, data string }{
		{"data.pkl", pickle}, {"byteorder", "little"}, {"data/0", string(numbers)}, {"version", "3\n"},
	} {
		w, err := z.CreateHeader(&zip.FileHeader{Name: "archive/" + entry.name, Method: zip.Store})
		if err == nil {
			_, err = w.Write([]byte(entry.data))
		}
		if err != nil {
			panic(err) // into memory
		}
	}
	if err := z.Close(); err != nil {
		panic(err)
	}
	return base64.StdEncoding.EncodeToString(file.Bytes())
}
