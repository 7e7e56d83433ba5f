package conformance_test

import (
	"context"
	"fmt"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/manifest"
)

func Example() {
	matrix, _ := compat.Load("../compat.toml")
	mf, _ := manifest.Load("manifest.toml")
	cases, err := conformance.NewPlan(matrix, mf, conformance.Selection{
		Lines: []string{"0.33"}, Goldens: []string{"multiturn-s7"},
		Assertions: []conformance.Assertion{conformance.Schema, conformance.Fidelity}, Concurrency: []int{16},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	runner := conformance.Runner{
		Store: conformance.NewStore(conformance.StoreOptions{Dir: "../testdata/goldens"}),
	}
	report := runner.Run(context.Background(), cases)
	for _, r := range report.Results {
		fmt.Println(r.Case.Name(), r.Verdict)
	}
	fmt.Println("every token compared twice:", report.Tokens == 2*cases[0].Golden.Tokens)
	fmt.Println(report.Reason, report.ExitCode)
	// Output:
	// 0.33/multiturn-s7/schema pass
	// 0.33/multiturn-s7/fidelity-index-16 pass
	// 0.33/multiturn-s7/fidelity-prefix-16 pass
	// every token compared twice: true
	// every gate holds 0
}
