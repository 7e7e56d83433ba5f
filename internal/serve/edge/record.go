package edge

import (
	"bytes"
	"encoding/json"
	"net/http"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/jsonout"
)

// A Record is a line of the request log. It has nothing of what was asked and answered but counts.
type Record struct {
	Time   time.Time `json:"time"` // of the arrival
	ID     string    `json:"request_id"`
	Client string    `json:"client"`
	Method string    `json:"method"`
	Path   string    `json:"path"`
	Rank   int       `json:"rank"`
	Model  string    `json:"model,omitempty"`
	Stream bool      `json:"stream"`
	// Status is 0 of a request that got no answer. Aborted says that the client or a fault ended it before its end.
	Status  int  `json:"status"`
	Aborted bool `json:"aborted,omitempty"`
	// Faults are those that were injected, as they were given.
	Faults []string `json:"faults,omitempty"`
	// FirstByteMS and DurationMS count from the arrival.
	FirstByteMS float64 `json:"first_byte_ms"`
	DurationMS  float64 `json:"duration_ms"`
	BytesIn     int64   `json:"bytes_in"`
	BytesOut    int64   `json:"bytes_out"`
	Events      int     `json:"events,omitempty"`
	// Tokens are what the answer says about its usage.
	PromptTokens     int `json:"prompt_tokens,omitempty"`
	CompletionTokens int `json:"completion_tokens,omitempty"`
}

// tailSize is enough for the usage, which is among the last things of an answer, in bytes.
const tailSize = 2 << 10

// begin begins the record of a request.
func (x *exchange) begin(r *http.Request, rank int) {
	x.record = &Record{Time: time.Now(), Client: r.RemoteAddr, Method: r.Method, Path: r.URL.Path, Rank: rank, BytesIn: max(r.ContentLength, 0)}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// record writes the line. It is called also when the answer is given up, which is a panic.
func (e *Edge) record(r *http.Request, x *exchange) {
	gone := recover()
	one := x.record
	one.ID, one.Model, one.Stream = x.id, x.asked.model, x.asked.stream
	one.Aborted = gone != nil || r.Context().Err() != nil
	if x.size > 0 {
		one.BytesIn = int64(x.size)
	}
	one.DurationMS = milliseconds(time.Since(one.Time))
	if at := bytes.LastIndex(x.tail, []byte(`"usage":{`)); at >= 0 {
		var usage struct {
			Prompt     int `json:"prompt_tokens"`
			Completion int `json:"completion_tokens"`
		}
		if json.NewDecoder(bytes.NewReader(x.tail[at+len(`"usage":`):])).Decode(&usage) == nil {
			one.PromptTokens, one.CompletionTokens = usage.Prompt, usage.Completion
		}
	}
	if line, err := jsonout.Line(one); err == nil {
		e.records.Lock()
		_, _ = e.opt.RequestLog.Write(line) // a log that cannot be written ends no request
		e.records.Unlock()
	}
	if gone != nil {
		panic(gone)
	}
}
