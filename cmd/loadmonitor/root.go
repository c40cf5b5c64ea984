package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func (p *program) newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "loadmonitor",
		Short:         "The load of every engine, per DP rank, in every router",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetFlagErrorFunc(flagError)
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(p.newServe(), p.newSimulate(), p.newDemo(), p.newSnapshot(), p.newWatch(), p.newBench(), p.newVersion())
	return root
}

func (p *program) newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print version, revision and Go version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			version, revision := buildVersion()
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "loadmonitor %s (%s, %s)\n", version, revision, runtime.Version())
			return err
		},
	}
}

// version and revision are set at build time by the Makefile's -ldflags.
var version, revision string

// buildVersion returns what this binary was built from; "devel" and "unknown" where the build did not say.
func buildVersion() (v, rev string) {
	v, rev = version, revision
	if info, ok := debug.ReadBuildInfo(); ok {
		if v == "" && info.Main.Version != "(devel)" {
			v = info.Main.Version
		}
		for _, s := range info.Settings {
			if rev == "" && s.Key == "vcs.revision" {
				rev = s.Value
			}
		}
	}
	if v == "" {
		v = "devel"
	}
	if rev == "" {
		rev = "unknown"
	}
	return v, rev
}
