"""What prepared claims need between kubelet's calls: following devices, renewing effects, informing users, sweeping."""
