"""What prepared claims need between kubelet's calls: followed devices, renewed effects, people told, remains swept
away."""
