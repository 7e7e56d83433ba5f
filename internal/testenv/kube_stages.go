package testenv

import (
	"fmt"
	"strings"
)

// A podStage is what kwok makes of a pod on a node. The first of a pod leaves its phase pending or running, and a
// behaviour has one more at most.
type podStage struct {
	name, when string // a selector, as a list of YAML
	status     string // of the pod, in YAML, beside its containers and conditions
	ready      string // of a container
	podReady   string // "True" or "False"
	state      string // of a container that is not an init container of the usual kind
	more       string // of such a container
}

const (
	isNew = `{key: .status.phase, operator: In, values: [Pending]}, {key: .status.startTime, operator: DoesNotExist}`
	// onKwok leaves the pods of a [Machine] to it.
	onKwok    = `{key: '.metadata.namespace[0:5]', operator: NotIn, values: [real-]}`
	isRunning = `{key: .status.phase, operator: In, values: [Running]}`
	started   = "startTime: {{ $now | Quote }}\n"
	address   = "hostIP: 127.0.0.1\n" +
		"podIP: {{ PodIPWith .spec.nodeName false .metadata.uid .metadata.name .metadata.namespace | Quote }}\n"
	running = `{running: {startedAt: {{ $now | Quote }}}}`
)

// podStages returns the configuration of kwok's stages of pods.
func podStages() string {
	stages := []podStage{
		{
			name: "run", when: isNew + ", " + behaves("NotIn", PodNoImage, PodNothing),
			status: "phase: Running\n" + started + address,
			ready:  "{{ if .restartPolicy }}true{{ else }}{{ not .readinessProbe }}{{ end }}", podReady: "{{ $ready }}", state: running,
		},
		{
			name: "no-image", when: isNew + ", " + behaves("In", PodNoImage), status: "phase: Pending\n" + started,
			state: waiting("ImagePullBackOff", `"Back-off pulling image %s: not found" .image`),
		},
		{
			name: "ready", when: isRunning + ", " + behaves("In", PodReady) +
				`, {key: '.status.conditions.[] | select(.type == "Ready") | .status', operator: NotIn, values: ["True"]}`,
			ready: "true", podReady: "True", state: running,
		},
		{
			name: "crash", when: isRunning + ", " + behaves("In", PodCrash) +
				`, {key: '.status.containerStatuses.[].restartCount', operator: NotIn, values: ["1"]}`,
			state: waiting("CrashLoopBackOff", `"back-off 10s restarting %s" .name`),
			more:  "restartCount: 1, lastState: " + terminated(1, "Error"),
		},
		ending(PodComplete, "phase: Succeeded", terminated(0, "Completed")),
		ending(PodFail, "phase: Failed", terminated(1, "Error")),
		ending(PodOOM, "phase: Failed", terminated(137, "OOMKilled")),
		ending(PodEvict, "phase: Failed\nreason: Evicted\nmessage: 'The node was low on resource: memory.'",
			terminated(137, "Error")),
	}
	documents := []string{podDeletion}
	for _, stage := range stages {
		documents = append(documents, stage.yaml())
	}
	return strings.Join(documents, "---\n")
}

func ending(behaviour, status, state string) podStage {
	when := isRunning + ", " + behaves("In", behaviour)
	return podStage{name: behaviour, when: when, status: status + "\n", state: state}
}

func behaves(operator string, behaviours ...string) string {
	return fmt.Sprintf(`{key: '.metadata.annotations["%s"]', operator: %s, values: [%s]}`,
		BehaviourAnnotation, operator, strings.Join(behaviours, ", "))
}

func terminated(code int, reason string) string {
	const times = "startedAt: {{ $now | Quote }}, finishedAt: {{ $now | Quote }}"
	return fmt.Sprintf("{terminated: {exitCode: %d, reason: %s, %s}}", code, reason, times)
}

// waiting is the state of a container, with a message as arguments of printf.
func waiting(reason, message string) string {
	return fmt.Sprintf("{waiting: {reason: %s, message: {{ printf %s | Quote }}}}", reason, message)
}

const podDeletion = `apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-delete}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector: {matchExpressions: [{key: .metadata.deletionTimestamp, operator: Exists}, ` + onKwok + `]}
  next: {delete: true}
`

func (s podStage) yaml() string {
	if s.podReady == "" {
		s.ready, s.podReady = "false", "False"
	}
	if s.more == "" {
		s.more = "restartCount: 0"
	}
	condition := func(name, status string) string {
		return fmt.Sprintf("- {type: %s, status: %q, lastTransitionTime: {{ $now | Quote }}}\n", name, status)
	}
	template := `{{ $now := Now }}{{ $ready := "True" }}
{{ range .spec.containers }}{{ if .readinessProbe }}{{ $ready = "False" }}{{ end }}{{ end }}
` + s.status + "conditions:\n" + condition("Initialized", "True") + condition("ContainersReady", s.podReady) +
		condition("Ready", s.podReady) + `{{ with .spec.initContainers }}
initContainerStatuses:
{{ range . }}{{ if .restartPolicy }}
` + container(s.state, s.ready, s.more) + `{{ else }}
` + container(terminated(0, "Completed"), "true", "restartCount: 0") + `{{ end }}{{ end }}{{ end }}
containerStatuses:
{{ range .spec.containers }}
` + container(s.state, s.ready, s.more) + "{{ end }}\n"
	return fmt.Sprintf(`apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-%s}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector: {matchExpressions: [{key: .metadata.deletionTimestamp, operator: DoesNotExist}, %s, %s]}
  next:
    statusTemplate: |
      %s
`, s.name, onKwok, s.when, strings.ReplaceAll(strings.TrimSpace(template), "\n", "\n      "))
}

// container is the status of one. An image that is not pinned turns out to have the digest 1.
func container(state, ready, more string) string {
	return fmt.Sprintf(`{{ $digest := "@sha256:%064d" }}{{ if contains "@" .image }}{{ $digest = "" }}{{ end }}
- {name: {{ .name | Quote }}, image: {{ .image | Quote }}, imageID: {{ print .image $digest | Quote }},
   ready: %s, started: %t, state: %s, %s}
`, 1, ready, state == running, state, more)
}
