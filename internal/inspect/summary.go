package inspect

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/vllm-vcr/conformance/trace"
)

// Summary is what a recording holds. Times are in ms; a pointer is nil where the recording does not tell.
type Summary struct {
	Name string `json:"name"`
	// Model, GPU, Version and Config are what the head of the recording says, "" for what it does not.
	Model   string `json:"model,omitempty"`
	GPU     string `json:"gpu,omitempty"`
	Version string `json:"vllm_version,omitempty"`
	Config  string `json:"engine_config,omitempty"`
	// Records is the number of requests, Silent how many of them ended before they said anything.
	Records int `json:"records"`
	Silent  int `json:"silent,omitempty"`
	// Turns is how many requests begin with the whole prompt of an earlier one that had ended.
	Turns *int `json:"turns,omitempty"`
	// Seconds is the time from the first arrival to the last output.
	Seconds *float64 `json:"seconds,omitempty"`
	// PromptTokens, OutputTokens and Concurrency are per request.
	PromptTokens Counts `json:"prompt_tokens"`
	OutputTokens Counts `json:"output_tokens"`
	Concurrency  Counts `json:"concurrency"`
	// Cached is the part of all prompt tokens that was found in the prefix cache, 0 to 1.
	Cached float64        `json:"cached"`
	Finish map[string]int `json:"finish,omitempty"`
	TTFT   Distribution   `json:"ttft"`
	ITL    Distribution   `json:"itl"`
}

// Counts is how many there were of something.
type Counts struct {
	Sum  int     `json:"sum"`
	Mean float64 `json:"mean"`
	Min  int     `json:"min"`
	P50  int     `json:"p50"`
	P90  int     `json:"p90"`
	Max  int     `json:"max"`
}

func countsOf(values []int) Counts {
	if len(values) == 0 {
		return Counts{}
	}
	slices.Sort(values)
	c := Counts{Min: values[0], Max: values[len(values)-1], P50: values[(len(values)-1)/2], P90: values[(9*len(values)+9)/10-1]}
	for _, v := range values {
		c.Sum += v
	}
	c.Mean = float64(c.Sum) / float64(len(values))
	return c
}

// Summarize tells what a recording holds.
func Summarize(t *trace.Trace) Summary {
	s := Summary{
		Name: t.Name, Model: trace.Or(t.Meta.Model, ""), GPU: trace.Or(t.Meta.GPU, ""), Version: trace.Or(t.Meta.VLLMVersion, ""),
		Config: trace.Or(t.Meta.EngineConfig, ""), Records: len(t.Records), Finish: map[string]int{},
	}
	var prompts, outputs, beside []int
	cached := 0
	for i := range t.Records {
		r := &t.Records[i]
		prompts, outputs = append(prompts, r.PromptTokens), append(outputs, r.OutputTokens)
		beside = append(beside, int(min(r.Concurrency, 1<<31)))
		cached += r.CachedTokens
		if r.OutputTokens == 0 {
			s.Silent++
		}
		if r.FinishReason != trace.FinishAbsent {
			s.Finish[r.FinishReason.String()]++
		}
	}
	s.PromptTokens, s.OutputTokens, s.Concurrency = countsOf(prompts), countsOf(outputs), countsOf(beside)
	if s.PromptTokens.Sum > 0 {
		s.Cached = float64(cached) / float64(s.PromptTokens.Sum)
	}
	times := samplesOf(t.Records)
	s.TTFT, s.ITL = times.ttft.distribution(), times.itl.distribution()
	s.lasted(t)
	if w, err := WorkloadOf(t); err == nil {
		turns := w.Turns()
		s.Turns = &turns
	}
	return s
}

// lasted sets the time that the recording took, if all of its requests tell when they came.
func (s *Summary) lasted(t *trace.Trace) {
	var first, last float64
	for i := range t.Records {
		r := &t.Records[i]
		if r.ArrivalMs == nil {
			return
		}
		if i == 0 || *r.ArrivalMs < first {
			first = *r.ArrivalMs
		}
		last = max(last, endOf(r))
	}
	if len(t.Records) > 0 {
		seconds := (last - first) / 1000
		s.Seconds = &seconds
	}
}

// JSON writes the summary as one indented object.
func (s *Summary) JSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(s)
}

// Text writes the summary for people. What the recording says in words is written by clean.
func (s *Summary) Text(w io.Writer, clean func(string) string) error {
	out := &sticky{w: w}
	for _, line := range [][2]string{
		{"recording", s.Name}, {"model", s.Model}, {"GPU", s.GPU}, {"vLLM", s.Version}, {"engine", s.Config},
	} {
		if line[1] != "" {
			out.printf("%-10s %s\n", line[0], clean(line[1]))
		}
	}
	out.printf("%-10s %d", "requests", s.Records)
	if s.Turns != nil {
		out.printf(", %d of them turns that wait for an answer", *s.Turns)
	}
	if s.Silent > 0 {
		out.printf(", %d without an output", s.Silent)
	}
	if s.Seconds != nil {
		out.printf(", in %.1f s", *s.Seconds)
	}
	out.printf("\n%-10s %d prompt, %.1f %% of them cached; %d output\n\n", "tokens", s.PromptTokens.Sum, 100*s.Cached, s.OutputTokens.Sum)
	s.table(out)
	return out.err
}

func (s *Summary) table(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\tmean\tmin\tp50\tp90\tp99\tmax\t")
	for _, row := range []struct {
		name string
		of   Counts
	}{{"prompt tokens", s.PromptTokens}, {"output tokens", s.OutputTokens}, {"concurrency", s.Concurrency}} {
		fmt.Fprintf(t, "%s\t%.1f\t%d\t%d\t%d\t\t%d\t\n", row.name, row.of.Mean, row.of.Min, row.of.P50, row.of.P90, row.of.Max)
	}
	for _, row := range []struct {
		name string
		of   Distribution
	}{{"TTFT ms", s.TTFT}, {"ITL ms", s.ITL}} {
		if row.of.Count > 0 {
			fmt.Fprintf(t, "%s\t%.2f\t\t%.2f\t%.2f\t%.2f\t\t\n", row.name, row.of.Mean, row.of.P50, row.of.P90, row.of.P99)
		}
	}
	_ = t.Flush() // w keeps the error
}
