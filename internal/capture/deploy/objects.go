package deploy

import "k8s.io/apimachinery/pkg/api/resource"

// TypeMeta is the kind of an object and the version of its API.
type TypeMeta struct {
	APIVersion string `json:"apiVersion,omitempty"`
	Kind       string `json:"kind,omitempty"`
}

// ObjectMeta is what all objects have. Of a pod template only labels and annotations are given.
type ObjectMeta struct {
	Name        string            `json:"name,omitempty"`
	Namespace   string            `json:"namespace,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// A Job is one of batch/v1. Times are in seconds.
type Job struct {
	TypeMeta
	ObjectMeta `json:"metadata"`
	Spec       JobSpec `json:"spec"`
}

// JobSpec is the part of a Job that it asks for.
type JobSpec struct {
	Suspend                 bool             `json:"suspend"`
	Parallelism             int32            `json:"parallelism,omitempty"`
	Completions             int32            `json:"completions,omitempty"`
	BackoffLimit            int32            `json:"backoffLimit"`
	ActiveDeadlineSeconds   int64            `json:"activeDeadlineSeconds,omitempty"`
	TTLSecondsAfterFinished int32            `json:"ttlSecondsAfterFinished,omitempty"`
	PodReplacementPolicy    string           `json:"podReplacementPolicy,omitempty"`
	PodFailurePolicy        PodFailurePolicy `json:"podFailurePolicy,omitzero"`
	Template                PodTemplateSpec  `json:"template"`
}

// PodFailurePolicy decides what becomes of a Job whose pod failed: the first rule that fits.
type PodFailurePolicy struct {
	Rules []PodFailurePolicyRule `json:"rules"`
}

// PodFailurePolicyRule is about the exit codes of a container, or about conditions of the pod.
type PodFailurePolicyRule struct {
	Action          string                `json:"action"`
	OnExitCodes     *OnExitCodes          `json:"onExitCodes,omitempty"`
	OnPodConditions []PodConditionPattern `json:"onPodConditions,omitempty"`
}

// OnExitCodes fits a container that ended with one of the values, or with none of them.
type OnExitCodes struct {
	ContainerName string  `json:"containerName"`
	Operator      string  `json:"operator"`
	Values        []int32 `json:"values"`
}

// PodConditionPattern fits a pod that has the condition.
type PodConditionPattern struct {
	Type   string `json:"type"`
	Status string `json:"status"`
}

// PodTemplateSpec is what the pods of a Job or a Deployment are made from.
type PodTemplateSpec struct {
	ObjectMeta `json:"metadata"`
	Spec       PodSpec `json:"spec"`
}

// PodSpec is the part of a pod that it asks for.
type PodSpec struct {
	InitContainers                []Container        `json:"initContainers,omitempty"`
	Containers                    []Container        `json:"containers"`
	Volumes                       []Volume           `json:"volumes,omitempty"`
	RestartPolicy                 string             `json:"restartPolicy,omitempty"`
	TerminationGracePeriodSeconds int64              `json:"terminationGracePeriodSeconds,omitempty"`
	NodeSelector                  map[string]string  `json:"nodeSelector,omitempty"`
	Affinity                      *Affinity          `json:"affinity,omitempty"`
	Tolerations                   []Toleration       `json:"tolerations,omitempty"`
	SecurityContext               PodSecurityContext `json:"securityContext,omitzero"`
	AutomountServiceAccountToken  bool               `json:"automountServiceAccountToken"`
	EnableServiceLinks            bool               `json:"enableServiceLinks"`
}

// PodSecurityContext is the user and the system calls of all containers of a pod.
type PodSecurityContext struct {
	RunAsNonRoot   bool           `json:"runAsNonRoot"`
	RunAsUser      int64          `json:"runAsUser"`
	RunAsGroup     int64          `json:"runAsGroup"`
	FSGroup        int64          `json:"fsGroup"`
	SeccompProfile SeccompProfile `json:"seccompProfile"`
}

// SeccompProfile names the system calls that are allowed.
type SeccompProfile struct {
	Type string `json:"type"`
}

// Affinity says which nodes a pod may run on. Any of the terms is enough, and a node fits a term by all of its expressions.
type Affinity struct {
	NodeAffinity NodeAffinity `json:"nodeAffinity"`
}

// NodeAffinity is the part of an Affinity that is about labels of nodes.
type NodeAffinity struct {
	Required NodeSelector `json:"requiredDuringSchedulingIgnoredDuringExecution"`
}

// NodeSelector selects nodes.
type NodeSelector struct {
	NodeSelectorTerms []NodeSelectorTerm `json:"nodeSelectorTerms"`
}

// NodeSelectorTerm selects nodes by expressions.
type NodeSelectorTerm struct {
	MatchExpressions []NodeSelectorRequirement `json:"matchExpressions"`
}

// NodeSelectorRequirement is an expression about one label of a node.
type NodeSelectorRequirement struct {
	Key      string   `json:"key"`
	Operator string   `json:"operator"`
	Values   []string `json:"values,omitempty"`
}

// Toleration lets a pod run on nodes that keep others away.
type Toleration struct {
	Key      string `json:"key"`
	Operator string `json:"operator"`
	Effect   string `json:"effect"`
}

// A Container is a program of a pod. An init container with the restart policy Always runs beside the main containers.
type Container struct {
	Name                     string               `json:"name"`
	Image                    string               `json:"image"`
	ImagePullPolicy          string               `json:"imagePullPolicy,omitempty"`
	RestartPolicy            string               `json:"restartPolicy,omitempty"`
	Command                  []string             `json:"command,omitempty"`
	Args                     []string             `json:"args,omitempty"`
	WorkingDir               string               `json:"workingDir,omitempty"`
	Env                      []EnvVar             `json:"env,omitempty"`
	Ports                    []ContainerPort      `json:"ports,omitempty"`
	Resources                ResourceRequirements `json:"resources,omitzero"`
	VolumeMounts             []VolumeMount        `json:"volumeMounts,omitempty"`
	StartupProbe             *Probe               `json:"startupProbe,omitempty"`
	ReadinessProbe           *Probe               `json:"readinessProbe,omitempty"`
	LivenessProbe            *Probe               `json:"livenessProbe,omitempty"`
	TerminationMessagePolicy string               `json:"terminationMessagePolicy,omitempty"`
	SecurityContext          SecurityContext      `json:"securityContext,omitzero"`
}

// SecurityContext is what a container may do.
type SecurityContext struct {
	AllowPrivilegeEscalation bool         `json:"allowPrivilegeEscalation"`
	ReadOnlyRootFilesystem   bool         `json:"readOnlyRootFilesystem"`
	RunAsNonRoot             bool         `json:"runAsNonRoot"`
	Capabilities             Capabilities `json:"capabilities"`
}

// Capabilities are those that a container does without.
type Capabilities struct {
	Drop []string `json:"drop"`
}

// EnvVar is a variable of a container's environment, with a value or with the key of a secret.
type EnvVar struct {
	Name      string        `json:"name"`
	Value     string        `json:"value,omitempty"`
	ValueFrom *EnvVarSource `json:"valueFrom,omitempty"`
}

// EnvVarSource is where the value of a variable comes from.
type EnvVarSource struct {
	SecretKeyRef SecretKeyRef `json:"secretKeyRef"`
}

// SecretKeyRef names a secret, and a key in it.
type SecretKeyRef struct {
	Name string `json:"name"`
	Key  string `json:"key"`
}

// ContainerPort is a port that a container listens at.
type ContainerPort struct {
	Name          string `json:"name"`
	ContainerPort int32  `json:"containerPort"`
}

// ResourceRequirements are what a container is sure to get, and the most that it gets.
type ResourceRequirements struct {
	Requests ResourceList `json:"requests,omitempty"`
	Limits   ResourceList `json:"limits,omitempty"`
}

// A ResourceList has quantities by the name of the resource.
type ResourceList map[string]resource.Quantity

// Volume is a folder that lives as long as its pod.
type Volume struct {
	Name     string   `json:"name"`
	EmptyDir EmptyDir `json:"emptyDir"`
}

// EmptyDir is a folder on the node, or in its memory where Medium is Memory.
type EmptyDir struct {
	Medium    string            `json:"medium,omitempty"`
	SizeLimit resource.Quantity `json:"sizeLimit"`
}

// VolumeMount is where a container has a volume.
type VolumeMount struct {
	Name      string `json:"name"`
	MountPath string `json:"mountPath"`
	ReadOnly  bool   `json:"readOnly,omitempty"`
}

// Probe is how the kubelet asks a container for its state. Times are in seconds.
type Probe struct {
	Exec             *ExecAction `json:"exec,omitempty"`
	HTTPGet          *HTTPGet    `json:"httpGet,omitempty"`
	PeriodSeconds    int32       `json:"periodSeconds,omitempty"`
	TimeoutSeconds   int32       `json:"timeoutSeconds,omitempty"`
	SuccessThreshold int32       `json:"successThreshold,omitempty"`
	FailureThreshold int32       `json:"failureThreshold,omitempty"`
}

// ExecAction is a command in the container, which succeeds with exit code 0.
type ExecAction struct {
	Command []string `json:"command"`
}

// HTTPGet is a request to a port of the container, by the name of the port.
type HTTPGet struct {
	Path   string `json:"path"`
	Port   string `json:"port"`
	Scheme string `json:"scheme"`
}
