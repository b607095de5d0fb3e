"""Options of a run that takes a second."""

# a net that trains in a second
TINY = (
    "--model.net=lit_project.models.mlp.MLP --model.net.hidden_sizes=[32] --model.net.norm=none --data.batch_size=128 "
    "--trainer.log_every_n_steps=5"
)
