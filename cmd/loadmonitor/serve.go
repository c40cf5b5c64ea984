package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/loadmonitor/loadmonitor/registration"
)

func (p *program) newServe() *cobra.Command {
	s := &settings{}
	var file string
	var printConfig bool
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the monitor",
		Long: `Run the monitor until it is told to end (SIGTERM or SIGINT; a second one ends it at once).

Each flag but --config and --print-config may also be set in the environment (--stale-after is
LOADMONITOR_STALE_AFTER) or in a YAML file (stale-after: 3s); the command line wins over the environment, and the environment over the file. The file may also hold the list
"workers", with the keys id, url, role, models, zone, expected_ranks, token_file, api_key_file, transport, load_endpoints,
load_topic and curve_server_key for each; all but url may be left out, and role, expected_ranks, transport and load_endpoints
are then as the engine itself says.`,
		Example: `  loadmonitor serve --worker http://10.0.0.1:30000 --worker http://10.0.0.2:30000
  loadmonitor simulate --workers 8 | loadmonitor serve --workers-file -`,
		Args: cobra.NoArgs,
	}
	s.register(cmd.Flags())
	s.registerWorkers(cmd.Flags())
	cmd.Flags().StringVar(&file, "config", "", "YAML file with the settings")
	cmd.Flags().BoolVar(&printConfig, "print-config", false, "print the settings in force as such a file, and end")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		specs, err := interruptible(cmd.Context(), func() ([]registration.Spec, error) {
			if err := s.load(cmd.Flags(), file, p.lookupEnv); err != nil {
				return nil, err
			}
			if err := s.check(); err != nil {
				return nil, err
			}
			return s.allSpecs(cmd.InOrStdin())
		})
		if err != nil {
			return err
		}
		if printConfig {
			if err := s.checkStart(cmd.Context(), specs); err != nil {
				return err
			}
			return s.print(cmd.Flags(), specs, cmd.OutOrStdout())
		}
		log, err := s.logger(cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		m, err := newMonitor(cmd.Context(), s, specs, log)
		if err != nil {
			return err
		}
		log.Info("serving", "grpc", m.grpcAddr, "http", m.httpAddr, "workers", len(specs))
		err = m.run(cmd.Context())
		log.Info("ended", "versions", m.aggregator.Current().Snapshot.Version)
		return err
	}
	return cmd
}

// interruptible reads what may come from a pipe or a terminal, and gives up when ctx ends: nothing else can interrupt
// such a read.
func interruptible[T any](ctx context.Context, read func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := read()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, errors.New("interrupted while reading the configuration")
	}
}
