package edge

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vllm-vcr/conformance/internal/serve/grpc"
)

const headerRequestID = "X-Request-Id"

// requestID is the id that the client gave the request, if it is one that can be logged and sent on, else a new one.
func requestID(r *http.Request) string {
	if id := r.Header.Get(headerRequestID); validID(id) {
		return id
	}
	return newID()
}

// hasRequestID reports whether a body may have an id of its own.
func hasRequestID(body []byte) bool { return bytes.Contains(body, []byte(`"request_id"`)) }

func newID() string {
	var b [16]byte // no secret
	binary.LittleEndian.PutUint64(b[:], rand.Uint64())
	binary.LittleEndian.PutUint64(b[8:], rand.Uint64())
	return hex.EncodeToString(b[:])
}

func validID(id string) bool {
	ok := id != "" && len(id) <= 128
	for i := 0; ok && i < len(id); i++ {
		ok = id[i] > ' ' && id[i] < 0x7f
	}
	return ok
}

// hopByHop are the headers that belong to a connection and not to a message.
var hopByHop = []string{
	"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer",
	"Transfer-Encoding", "Upgrade",
}

func removeHopByHop(h http.Header) {
	for _, value := range h["Connection"] {
		for name := range strings.SplitSeq(value, ",") {
			h.Del(textproto.TrimString(name))
		}
	}
	for _, name := range hopByHop {
		delete(h, name)
	}
}

// An exchange is a request on its way.
type exchange struct {
	rank   *rank
	id     string
	body   []byte // of a request whose body the edge has to know, else nil
	asked  asked
	record *Record   // nil without a log
	shown  [1]string // the id, as the value of a header
}

// asked is what the edge has to know of the body of a request.
type asked struct {
	Model  string          `json:"model"`
	Stream bool            `json:"stream"`
	N      *int            `json:"n"`
	BestOf json.RawMessage `json:"best_of"`
	Prompt json.RawMessage `json:"prompt"`
	Seed   *int64          `json:"seed"`
	ID     string          `json:"request_id"`
}

func (e *Edge) handle(w http.ResponseWriter, r *http.Request, to *rank) {
	e.answer(w, r, &exchange{rank: to, id: requestID(r)})
}

func (e *Edge) answer(w http.ResponseWriter, r *http.Request, x *exchange) {
	to := x.rank
	if e.opt.Simulator != nil && r.Method == http.MethodPost && !validID(r.Header.Get(headerRequestID)) {
		x.id = e.opt.Simulator.nextID()
	}
	if r.ProtoMajor > 1 && grpc.IsCall(r) {
		call := &callWriter{ResponseWriter: w}
		defer call.end()
		w = call
	}
	e.showID(w, x)
	if e.records.to != nil {
		counting := e.records.begin(w, r, x)
		defer e.records.end(counting, r, x)
		w = counting
	}
	if x.body == nil {
		r.Body = http.MaxBytesReader(w, r.Body, e.opt.MaxBody)
	}
	if !e.admits(w, r) {
		return
	}
	if r.Header.Get("Upgrade") != "" && r.ProtoMajor == 1 && to.local == nil {
		r.Header.Set(headerRequestID, x.id)
		to.upgrades.ServeHTTP(w, r)
		return
	}
	if err := e.readBody(r, x); err != nil {
		e.answerAway(w, r, err)
		return
	}
	e.showID(w, x)
	if x.record != nil {
		x.record.ID = x.id
	}
	own, err := e.ownFaults(r, x)
	if err != nil {
		apiError{status: http.StatusBadRequest, message: err.Error()}.write(w)
		return
	}
	var inAnswer []Fault
	if faults := append(own, e.faults.Load().of(r, x)...); len(faults) > 0 {
		if x.record != nil {
			for i := range faults {
				x.record.Faults = append(x.record.Faults, faults[i].text)
			}
		}
		p := newPlan(faults, x.asked.Model)
		if e.early(w, r, p) {
			return
		}
		inAnswer = p.inAnswer
	}
	if e.addsEndpoint(w, r, x) {
		return
	}
	if to.local == nil && grpc.IsCall(r) {
		apiError{status: http.StatusNotImplemented, message: "this frontend serves no gRPC on this port: start serve with --frontend builtin"}.write(w)
		return
	}
	if to.local != nil && len(inAnswer) == 0 {
		e.serveLocal(w, r, x)
		return
	}
	var answer *http.Response
	if several := e.parts(r, x); several != nil {
		answer, err = e.fanOut(r, x, several)
	} else {
		answer, err = e.send(r, x)
	}
	if err != nil {
		e.answerAway(w, r, err)
		return
	}
	defer answer.Body.Close()
	e.relay(w, r, answer, x, inAnswer)
}

// showID puts the id of a request into its answer.
func (e *Edge) showID(w http.ResponseWriter, x *exchange) {
	if e.opt.Simulator == nil || e.opt.Simulator.RequestIDs {
		x.shown[0] = x.id
		w.Header()[headerRequestID] = x.shown[:]
	}
}

// admits answers what is for no frontend, or not from this client.
func (e *Edge) admits(w http.ResponseWriter, r *http.Request) bool {
	h := w.Header()
	if r.Method == http.MethodPost && e.opt.PodName != "" {
		h["X-Inference-Pod"] = []string{e.opt.PodName}
		if local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok {
			h["X-Inference-Port"] = []string{strconv.Itoa(local.Port)}
		}
	}
	if r.Method == http.MethodPost && e.opt.PodNamespace != "" {
		h["X-Inference-Namespace"] = []string{e.opt.PodNamespace}
	}
	switch {
	case path.Clean(r.URL.Path) == adminPath:
		e.serveAdmin(w, r)
	case e.opt.Simulator != nil && r.URL.Path == fakeMetricsPath && r.Method == http.MethodPost:
		e.serveFakeMetrics(w, r)
	case !e.authorized(r):
		apiError{status: http.StatusUnauthorized, message: "Unauthorized"}.write(w)
	default:
		return true
	}
	return false
}

// addsEndpoint answers what no frontend does, and reports whether it did.
func (e *Edge) addsEndpoint(w http.ResponseWriter, r *http.Request, x *exchange) bool {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	switch r.URL.Path {
	case "/ready", "/health/ready":
		e.serveReady(w, r, x)
	case "/metrics":
		return e.serveMetrics(w, r, x)
	default:
		return false
	}
	return true
}

// open are the endpoints that need no API key, as probes and Prometheus have none.
var open = []string{"/health", "/health/ready", "/ready", "/metrics", "/ping", "/version", "/load"}

func (e *Edge) authorized(r *http.Request) bool {
	get := r.Method == http.MethodGet || r.Method == http.MethodHead
	probe := strings.HasPrefix(r.URL.Path, "/grpc.health.v1.Health/") && grpc.IsCall(r)
	if len(e.keys) == 0 || get && slices.Contains(open, r.URL.Path) || probe || r.Method == http.MethodOptions {
		return true
	}
	key, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	given := sha256.Sum256([]byte(key))
	known := 0
	for _, k := range e.keys { // all of them: the time says nothing about which one it is
		known |= subtle.ConstantTimeCompare(given[:], k[:])
	}
	return ok && known == 1
}

// serveReady answers whether requests are served, as a probe asks.
func (e *Edge) serveReady(w http.ResponseWriter, r *http.Request, x *exchange) {
	w.Header().Set("Cache-Control", "no-store")
	if left := e.opt.StartupDuration - time.Since(e.started); left > 0 {
		apiError{status: http.StatusServiceUnavailable, message: "the server is starting", retryAfter: left}.write(w)
		return
	}
	answer, err := e.get(r, x, "/health")
	if err != nil {
		e.answerAway(w, r, err)
		return
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		apiError{status: http.StatusServiceUnavailable, message: "the health check of the frontend has status " + strconv.Itoa(answer.StatusCode)}.write(w)
		return
	}
	w.WriteHeader(http.StatusOK)
}

// get asks the frontend for something on behalf of a client's request.
func (e *Edge) get(r *http.Request, x *exchange, path string) (*http.Response, error) {
	own := r.Clone(r.Context())
	own.Method, own.URL = http.MethodGet, &url.URL{Path: path}
	own.Body, own.ContentLength = http.NoBody, 0
	own.Header = http.Header{"Authorization": r.Header["Authorization"]}
	return e.send(own, x)
}

// readBody reads the body of a request for the model, if anything depends on it.
func (e *Edge) readBody(r *http.Request, x *exchange) error {
	if !isGeneration(r) || !strings.HasPrefix(cmp.Or(r.Header.Get("Content-Type"), "application/json"), "application/json") {
		return nil
	}
	known := x.record != nil || e.opt.RequestFaults || len(e.faults.Load().faults) > 0 || e.faults.Load().rate > 0
	if !known && !e.opt.FanOut && r.Header.Get(headerRequestID) != "" {
		return nil
	}
	size := r.ContentLength
	if size > e.opt.MaxBody {
		return &http.MaxBytesError{Limit: e.opt.MaxBody}
	}
	if x.body == nil {
		body := bytes.NewBuffer(make([]byte, 0, min(max(size, 0), 1<<20)+bytes.MinRead))
		if _, err := body.ReadFrom(r.Body); err != nil {
			return err
		}
		x.body = body.Bytes()
	}
	if known || hasRequestID(x.body) || mayFanOut(r.URL.Path, x.body) {
		_ = json.Unmarshal(x.body, &x.asked) // the frontend says what is wrong with it
	}
	if r.Header.Get(headerRequestID) == "" && validID(x.asked.ID) {
		x.id = x.asked.ID // a header of ours would count more than the body
	}
	return nil
}

// send forwards a request and returns at the head of the answer.
func (e *Edge) send(r *http.Request, x *exchange) (*http.Response, error) {
	target := *r.URL
	target.Scheme, target.Host = x.rank.url.Scheme, x.rank.url.Host
	out := (&http.Request{
		Method: r.Method, URL: &target, Host: r.Host, Header: make(http.Header, len(r.Header)+1),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Body: r.Body, ContentLength: r.ContentLength,
	}).WithContext(r.Context())
	for name, values := range r.Header {
		out.Header[name] = values
	}
	removeHopByHop(out.Header)
	delete(out.Header, "Expect") // the edge has answered it
	if _, has := out.Header["User-Agent"]; !has {
		out.Header["User-Agent"] = nil // or package http sends its own
	}
	out.Header[headerRequestID] = []string{x.id}
	switch {
	case x.body != nil && r.Method == http.MethodPost:
		out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(x.body)), int64(len(x.body))
		out.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(x.body)), nil }
	case r.ContentLength == 0:
		out.Body = http.NoBody
	}
	if x.rank.local != nil {
		out.Proto, out.ProtoMajor, out.ProtoMinor = r.Proto, r.ProtoMajor, r.ProtoMinor // gRPC needs HTTP/2
		return roundTripLocal(x.rank.local, out)
	}
	return x.rank.transport.RoundTrip(out)
}

// relay sends an answer on to the client.
func (e *Edge) relay(w http.ResponseWriter, r *http.Request, answer *http.Response, x *exchange, faults []Fault) {
	removeHopByHop(answer.Header)
	header := w.Header()
	for name, values := range answer.Header {
		header[name] = values
	}
	header[headerRequestID] = []string{x.id}
	for _, f := range faults {
		if f.Kind == FaultTruncate || f.Kind == FaultMalformed {
			delete(header, "Content-Length") // it shall look whole
		}
	}
	w.WriteHeader(answer.StatusCode)
	var err error
	if len(faults) > 0 {
		err = e.spoil(w, r, answer, faults)
	} else {
		err = copyBody(w, answer)
	}
	if err != nil {
		e.log.Debug("an answer was cut", "id", x.id, "error", err)
		// The client has to notice that the answer is not whole, which it does when its connection ends.
		panic(http.ErrAbortHandler)
	}
	for name, values := range answer.Trailer {
		header[http.TrailerPrefix+name] = values
	}
}

// chunks are the buffers that answers are copied through.
var chunks = sync.Pool{New: func() any { return new([8 << 10]byte) }}

// copyBody copies each part of the body as it comes: a token does not wait for the next one.
func copyBody(w http.ResponseWriter, answer *http.Response) error {
	streams := answer.ContentLength < 0
	flusher := http.NewResponseController(w)
	if streams { // the head does not wait for the first token
		if err := flusher.Flush(); err != nil {
			return err
		}
	}
	for {
		if body, ok := answer.Body.(*upstreamBody); ok {
			body.await()
		}
		done, err := copyPart(w, answer.Body)
		if streams && err == nil {
			err = flusher.Flush()
		}
		if done || err != nil {
			return err
		}
	}
}

// copyPart copies what one Read returns. Its buffer is not kept while a stream waits for its next token.
func copyPart(w io.Writer, body io.Reader) (done bool, err error) {
	buf := chunks.Get().(*[8 << 10]byte)
	defer chunks.Put(buf)
	n, err := body.Read(buf[:])
	if n > 0 {
		if _, err := w.Write(buf[:n]); err != nil {
			return true, err
		}
	}
	return err == io.EOF, ignoreEOF(err)
}

// answerAway answers a request that the frontend did not answer.
func (e *Edge) answerAway(w http.ResponseWriter, r *http.Request, err error) {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		apiError{status: http.StatusRequestEntityTooLarge, message: "the body of the request has more than " +
			strconv.FormatInt(tooLarge.Limit, 10) + " bytes"}.write(w)
	case r.Context().Err() != nil:
		panic(http.ErrAbortHandler) // nobody reads an answer
	default:
		a, level := apiError{status: http.StatusBadGateway, message: "the frontend ended the connection before it answered"}, slog.LevelWarn
		if op := (*net.OpError)(nil); errors.As(err, &op) && op.Op == "dial" {
			a = apiError{status: http.StatusServiceUnavailable, message: "the frontend does not accept connections, it starts or has ended", retryAfter: time.Second}
			level = slog.LevelInfo // those who wait for the start ask again and again
		}
		e.log.Log(r.Context(), level, "the frontend does not answer", "path", r.URL.Path, "error", err)
		a.write(w)
	}
}
