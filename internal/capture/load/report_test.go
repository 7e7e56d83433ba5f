package load

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestReport(t *testing.T) {
	report := Report{
		Workload: Edge, Seed: 1, Model: "tiny", Requests: 12, Completed: 5, Aborted: 3, Failed: 1, Unfinished: 2,
		Refused: []Refusal{{Request: "n", Status: 400, Answer: "Only n=1\nis <supported>"}}, Tokens: 345, Duration: 1234567 * time.Microsecond,
		Shape: Shape{Concurrency: 8}, Late: 2500 * time.Microsecond,
	}
	tests := []struct {
		name  string
		write func(*strings.Builder) error
		want  string
	}{
		{
			name: "text", write: func(b *strings.Builder) error { return report.Text(b) },
			want: "edge seed 1: 12 requests: 5 completed, 3 aborted, 1 refused, 1 failed, 2 unfinished; 345 tokens in 1.235s\n" +
				"sent up to 3ms late\n" +
				`refused: n: status 400: "Only n=1\nis <supported>"` + "\n",
		},
		{
			name: "json", write: func(b *strings.Builder) error { return report.JSON(b) },
			want: `{
  "schema": "vllm-vcr/capture-load/1",
  "workload": "edge",
  "shape": [
    "--concurrency=8"
  ],
  "seed": 1,
  "model": "tiny",
  "requests": 12,
  "completed": 5,
  "aborted": 3,
  "refused": 1,
  "failed": 1,
  "unfinished": 2,
  "tokens": 345,
  "duration_ms": 1234.567,
  "late_ms": 2.5,
  "refusals": [
    {
      "request": "n",
      "status": 400,
      "answer": "Only n=1\nis \u003csupported\u003e"
    }
  ]
}
`,
		},
		{
			name: "nothing refused", want: `"refusals": []`,
			write: func(b *strings.Builder) error { return Report{}.JSON(b) },
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var b strings.Builder
			require.NoError(t, test.write(&b))
			if diff := cmp.Diff(test.want, b.String()); diff != "" && !strings.Contains(b.String(), test.want) {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
