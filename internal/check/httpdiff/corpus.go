package httpdiff

import (
	_ "embed"
	"fmt"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
)

//go:embed corpus.http
var corpusText string

// Depth is how much of two answers has to be equal.
type Depth string

const (
	// Values is everything but ids, times and the number of chunks of a stream.
	Values Depth = "values"
	// Shapes is everything but the texts and numbers: for answers that are random, or of different models.
	Shapes Depth = "shapes"
	// Status is the status and the content type.
	Status Depth = "status"
)

// A Request is one of the corpus.
type Request struct {
	// Name is "group/what", and Why the reason that the corpus has it.
	Name, Why string
	Method    string
	Path      string // with the query
	Header    http.Header
	// Body may have {{model}} and {{repeat N TEXT}} in it.
	Body string
	// Abort ends the connection after so many events of the answer; 0 reads all of it.
	Abort int
	// Depth is how much is compared.
	Depth Depth
	// Line is where it begins in its file.
	Line int
}

// Corpus is the list of requests in this program. They are sent in this order: some depend on those before them.
func Corpus() []Request {
	requests, err := ParseCorpus("corpus.http", corpusText)
	if err != nil {
		panic(err) // a test reads it
	}
	return requests
}

// ParseCorpus reads requests in the format of .http files, which editors can send:
//
//	### group/name: why the corpus has it
//	# @depth shapes
//	POST /v1/completions
//	X-Request-Id: mine
//
//	{"model": "{{model}}", "prompt": "Hello"}
//
// Other lines that begin with # are comments. A body is sent as application/json unless the request has a Content-Type,
// of which an empty one is left out.
func ParseCorpus(name, text string) (requests []Request, err error) {
	const fence = "###"
	known := map[string]int{}
	var r *Request
	inBody := false
	for i, line := range strings.Split(text, "\n") {
		fail := func(format string, args ...any) ([]Request, error) {
			return nil, fmt.Errorf("%s:%d: %s", name, i+1, fmt.Sprintf(format, args...))
		}
		title, begins := strings.CutPrefix(line, fence)
		switch {
		case begins:
			label, why, ok := strings.Cut(title, ":")
			label, why = strings.TrimSpace(label), strings.TrimSpace(why)
			if !ok || why == "" || !strings.Contains(label, "/") {
				return fail("%q: want ### group/name: why the corpus has it", line)
			}
			if first := known[label]; first > 0 {
				return fail("the name %s is that of line %d", label, first)
			}
			known[label] = i + 1
			requests = append(requests, Request{Name: label, Why: why, Header: http.Header{}, Depth: Values, Line: i + 1})
			r, inBody = &requests[len(requests)-1], false
		case inBody:
			r.Body += line + "\n"
		case strings.HasPrefix(line, "#"):
			option, has := strings.CutPrefix(line, "# @")
			if !has {
				continue
			}
			key, value, _ := strings.Cut(option, " ")
			switch {
			case r == nil:
				return fail("the option %s is for no request", key)
			case key == "depth" && (value == string(Values) || value == string(Shapes) || value == string(Status)):
				r.Depth = Depth(value)
			case key == "abort":
				if r.Abort, err = strconv.Atoi(value); err != nil || r.Abort < 1 {
					return fail("%q: want # @abort EVENTS", line)
				}
			default:
				return fail("%q: want # @depth values, shapes or status, or # @abort EVENTS", line)
			}
		case r == nil:
			if strings.TrimSpace(line) != "" {
				return fail("%q is before the first ###", line)
			}
		case r.Method == "":
			method, path, ok := strings.Cut(line, " ")
			if !ok || !strings.HasPrefix(path, "/") {
				return fail("%q: want METHOD /path", line)
			}
			r.Method, r.Path = method, path
		case line == "":
			inBody = true
		default:
			key, value, ok := strings.Cut(line, ":")
			if !ok {
				return fail("%q: want NAME: VALUE of a header, or an empty line before the body", line)
			}
			r.Header.Add(textproto.CanonicalMIMEHeaderKey(key), strings.TrimSpace(value))
		}
	}
	for i := range requests {
		r := &requests[i]
		if r.Body = strings.TrimRight(r.Body, "\n"); r.Method == "" {
			return nil, fmt.Errorf("%s:%d: %s has no METHOD /path", name, r.Line, r.Name)
		}
	}
	if len(requests) == 0 {
		return nil, fmt.Errorf("%s: no request: want ### group/name: why, METHOD /path, an empty line, and the body", name)
	}
	return requests, nil
}

var repeated = lazyregexp.New(`\{\{repeat (\d{1,7}) ([^}]{1,100})\}\}`)

// Generates reports whether a request that succeeds makes the engine compute.
func (r *Request) Generates() bool {
	if r.Method != http.MethodPost {
		return false
	}
	switch path, _, _ := strings.Cut(r.Path, "?"); path {
	case "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/inference/v1/generate":
		return true
	}
	return false
}
