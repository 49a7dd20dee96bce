package core

// A Node gets labels from its instance's tags, beside the well-known ones for type, zone and
// region. Upstream sets them when it initialises the Node, and changes none that exists.

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/ccmlab/ccmlab/ccm/config"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// nodeLabels says which of an instance's tags become labels: Prefix + the tag's key, with the tag's value.
type nodeLabels = config.NodeLabels

// kubernetesPrefixes matches the prefixes that belong to Kubernetes. Upstream discards
// labels with them (controllers/node, getNodeModifiersFromCloudProvider).
var kubernetesPrefixes = regexp.MustCompile(`(^|\.)(kubernetes|k8s)\.io/`)

// invalidLabelValueChars matches what a label's value cannot hold.
var invalidLabelValueChars = regexp.MustCompile(`[^-A-Za-z0-9_.]+`)

// additionalLabels are the labels from the instance's tags. A tag that cannot be a label is left
// out, and a notice says so: a missing label is no reason to keep a Node from its
// pods.
func (i *instances) additionalLabels(ctx context.Context, instance *api.Instance) map[string]string {
	labels := map[string]string{}
	var skipped []string
	for _, tag := range i.labels.Tags {
		value, there := instance.Tags[tag]
		if !there {
			continue
		}
		key := i.labels.Prefix + tag
		fit, err := labelValue(key, value)
		if err != nil {
			skipped = append(skipped, fmt.Sprintf("tag %q: %v", tag, err))
			continue
		}
		labels[key] = fit
	}
	if len(skipped) > 0 {
		slices.Sort(skipped)
		notify(ctx, contract.ReasonNodeLabelSkipped, "Some tags of instance %s cannot be labels of the Node: %s",
			instance.ID, strings.Join(skipped, "; "))
	}
	if len(labels) == 0 {
		return nil
	}
	return labels
}

// labelValue makes the value of a label with that key. What it cannot hold becomes "-", and one that is too long is
// cut. It fails if either cannot be a label's.
func labelValue(key, value string) (string, error) {
	if problems := validation.IsQualifiedName(key); len(problems) > 0 {
		return "", fmt.Errorf("%q is not a valid label key: %s", key, strings.Join(problems, ", "))
	}
	if kubernetesPrefixes.MatchString(key) {
		return "", fmt.Errorf("%q has a prefix that is reserved for Kubernetes", key)
	}
	fit := invalidLabelValueChars.ReplaceAllString(value, "-")
	fit = strings.Trim(fit[:min(len(fit), validation.LabelValueMaxLength)], "-_.")
	if fit == "" && value != "" {
		return "", fmt.Errorf("its value %q has no character that a label can hold", value)
	}
	return fit, nil
}
