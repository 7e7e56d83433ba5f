package action

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
)

// maxArtifactName is how long the readable part of a name gets.
const maxArtifactName = 80

// notInArtifact is what the name of an artifact may not have, and what is hard to read in one.
var notInArtifact = lazyregexp.New(`[^A-Za-z0-9._-]+`)

// A Job is where a step runs. Step is what no other step has.
type Job struct{ Name, OS, Arch, Attempt, Step string }

// ArtifactName is what the report is kept under. Unless it is given, it has the job's step in it: an artifact with the
// name of another is refused.
func (in Inputs) ArtifactName(job Job) (string, error) {
	if name, given := in["artifact-name"]; given {
		if strings.ContainsAny(name, "\"\\/:<>|*?\r\n") {
			return "", fmt.Errorf("input artifact-name is %q: want none of \" \\ / : < > | * ? in it", name)
		}
		return name, nil
	}
	parts := []string{"vllm-vcr", job.Name}
	parts = append(parts, values(in["line"])...)
	parts = append(parts, job.OS, job.Arch)
	parts = slices.DeleteFunc(parts, func(part string) bool { return part == "" })
	name := notInArtifact().ReplaceAllString(strings.Join(parts, "-"), "_")
	return fmt.Sprintf("%s-%s-%s", name[:min(len(name), maxArtifactName)], notInArtifact().ReplaceAllString(job.Attempt, "_"), job.Step), nil
}

// accountID is that of an AWS account in the name of a role: arn:aws:iam::123456789012:role/goldens.
var accountID = lazyregexp.New(`^arn:[a-z-]*:[a-z]*:[a-z0-9-]*:([0-9]{12}):`)

// Secrets are the parts of the inputs that must not be seen in a log.
func (in Inputs) Secrets() []string {
	if found := accountID().FindStringSubmatch(in["role-to-assume"]); found != nil {
		return found[1:]
	}
	return nil
}
