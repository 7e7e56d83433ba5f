package load

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"
)

// Report is what a workload came to. Every request is counted once in Completed, Aborted, Refused, Failed or
// Unfinished.
type Report struct {
	Workload Workload
	Seed     uint64
	Model    string
	Shape    Shape // with the workload's defaults
	// Requests were sent.
	Requests int
	// Completed had their whole answer.
	Completed int
	// Aborted were given up by their client, as the workload says.
	Aborted int
	// Refused are those that the server does not know, in the order of their answers.
	Refused []Refusal
	// Failed should have been answered. Unfinished were on their way then.
	Failed, Unfinished int
	// Tokens came, as the server counts them; of aborted requests, the events.
	Tokens   int
	Duration time.Duration
	// Late is how long after its time a request was sent at most, of a workload that has times.
	Late time.Duration
}

// Refusal is a request that the server answered with a status 4xx.
type Refusal struct {
	Request string `json:"request"`
	Status  int    `json:"status"`
	// Answer is the head of the body, at most 2 KiB.
	Answer string `json:"answer"`
}

// Text writes one line, and one for each refusal.
func (r Report) Text(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%s seed %d: %d requests: %d completed, %d aborted, %d refused, %d failed, %d unfinished; %d tokens in %v\n",
		r.Workload, r.Seed, r.Requests, r.Completed, r.Aborted, len(r.Refused), r.Failed, r.Unfinished,
		r.Tokens, r.Duration.Round(time.Millisecond))
	if r.Late > 0 && err == nil {
		_, err = fmt.Fprintf(w, "sent up to %v late\n", r.Late.Round(time.Millisecond))
	}
	for _, no := range r.Refused {
		if err == nil {
			_, err = fmt.Fprintf(w, "refused: %s: status %d: %q\n", no.Request, no.Status, no.Answer)
		}
	}
	return err
}

// reportSchema changes when a key changes its meaning.
const reportSchema = "vllm-vcr/capture-load/1"

// document is a report as JSON.
type document struct {
	Schema     string    `json:"schema"`
	Workload   Workload  `json:"workload"`
	Shape      []string  `json:"shape"` // as flags
	Seed       uint64    `json:"seed"`
	Model      string    `json:"model"`
	Requests   int       `json:"requests"`
	Completed  int       `json:"completed"`
	Aborted    int       `json:"aborted"`
	Refused    int       `json:"refused"`
	Failed     int       `json:"failed"`
	Unfinished int       `json:"unfinished"`
	Tokens     int       `json:"tokens"`
	DurationMs float64   `json:"duration_ms"`
	LateMs     float64   `json:"late_ms"`
	Refusals   []Refusal `json:"refusals"`
}

// JSON writes the report as one object.
func (r Report) JSON(w io.Writer) error {
	doc := document{
		reportSchema, r.Workload, append([]string{}, r.Shape.Flags()...), r.Seed, r.Model, r.Requests, r.Completed,
		r.Aborted, len(r.Refused), r.Failed, r.Unfinished, r.Tokens, ms(r.Duration), ms(r.Late), r.Refused,
	}
	if doc.Refusals == nil {
		doc.Refusals = []Refusal{}
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(doc)
}

// maxReport bounds the file of a report, in bytes: a refusal quotes at most 2 KiB.
const maxReport = 16 << 20

// ReadReport reads the file of a report. Its shape, which is there for people, is left out.
func ReadReport(path string) (Report, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Report{}, err
	}
	if info.Size() > maxReport {
		return Report{}, fmt.Errorf("%s: %d bytes: no report of a load is larger than %d", path, info.Size(), maxReport)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return Report{}, err
	}
	var doc document
	if err := json.Unmarshal(text, &doc); err != nil {
		return Report{}, fmt.Errorf("%s: %w", path, err)
	}
	if doc.Schema != reportSchema {
		return Report{}, fmt.Errorf("%s: schema %q: want %s", path, doc.Schema, reportSchema)
	}
	return Report{
		Workload: doc.Workload, Seed: doc.Seed, Model: doc.Model, Requests: doc.Requests, Completed: doc.Completed,
		Aborted: doc.Aborted, Refused: doc.Refusals, Failed: doc.Failed, Unfinished: doc.Unfinished, Tokens: doc.Tokens,
		Duration: duration(doc.DurationMs), Late: duration(doc.LateMs),
	}, nil
}

func duration(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }
